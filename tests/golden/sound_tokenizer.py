"""A tokenizer of bytes with Whisper's control tokens, and the generation_config.json beside it."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

LANGUAGES = ("en", "de", "fr")
_LETTERS = sorted(ByteLevel.alphabet())
_CONTROL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
IDS = {text: len(_LETTERS) + index for index, text in enumerate(_CONTROL)}
TIMESTAMPS = len(_LETTERS) + len(_CONTROL)
_SPOKEN = {_LETTERS.index(letter) for letter in "\u0120abcdefghijklmnopqrstuvwxyz,."}


def tokenizer_json(positions: int) -> str:
    """Return tokenizer.json of a model whose encoder has so many positions of 20 ms."""
    made = Tokenizer(BPE({letter: index for index, letter in enumerate(_LETTERS)}, []))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = ByteLevelDecoder()  # pyright: ignore[reportAttributeAccessIssue]
    times = [f"<|{index / 50:.2f}|>" for index in range(positions + 1)]
    made.add_special_tokens([AddedToken(each, special=True) for each in (*_CONTROL, *times)])
    return made.to_str()


def generation_config(*, multilingual: bool) -> dict[str, Any]:
    """Letters and punctuation are spoken; of control tokens only timestamps and the end."""
    languages = {f"<|{code}|>": IDS[f"<|{code}|>"] for code in LANGUAGES}
    said: dict[str, Any] = {
        "begin_suppress_tokens": [_LETTERS.index("\u0120"), IDS["<|endoftext|>"]],
        "bos_token_id": IDS["<|endoftext|>"],
        "decoder_start_token_id": IDS["<|startoftranscript|>"],
        "eos_token_id": IDS["<|endoftext|>"],
        "is_multilingual": multilingual,
        "max_initial_timestamp_index": 20,
        "no_timestamps_token_id": IDS["<|notimestamps|>"],
        "pad_token_id": IDS["<|endoftext|>"],
        "prev_sot_token_id": IDS["<|startofprev|>"],
        "return_timestamps": False,
        "suppress_tokens": [
            each
            for each in range(TIMESTAMPS)
            if each not in _SPOKEN and each not in (IDS["<|endoftext|>"], IDS["<|notimestamps|>"])
        ],
    }
    if multilingual:
        said["lang_to_id"] = languages
        said["task_to_id"] = {name: IDS[f"<|{name}|>"] for name in ("transcribe", "translate")}
    return said
