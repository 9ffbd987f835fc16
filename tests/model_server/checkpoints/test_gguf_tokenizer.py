"""The tokenizer in GGUF metadata cuts and joins as its makers' tokenizer.json does."""

from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.gguf_tokenizer import PRE_TOKENIZERS, tokenizer_of
from model_server.spelling import byte_alphabet
from sax.errors import CheckpointError

LETTERS = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
TOKENS = ["<|end|>", "<|turn|>", "<think>", *LETTERS, "12", "123", "\u0120a"]
MERGES = ["1 2", "12 3", "\u0120 a"]
TYPES = np.array([3, 3, 4] + [1] * (len(TOKENS) - 3), np.int32)
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.token_type": TYPES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.eot_token_id": 1,
}


def pieces(pre: str, text: str) -> list[str]:
    tokenizer = tokenizer_of(METADATA | {"tokenizer.ggml.pre": pre})
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_bos=False)]


def test_digits_stand_alone_where_the_model_was_trained_so() -> None:
    assert pieces("smollm", "1234 a") == ["1", "2", "3", "4", " a"]
    assert pieces("qwen2", "1234 a") == ["1", "2", "3", "4", " a"]
    assert pieces("gpt-2", "1234 a") == ["123", "4", " a"]
    assert pieces("llama-bpe", "1234 a") == ["123", "4", " a"]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_way_of_cutting_keeps_every_byte(pre: str) -> None:
    text = "It's  1234 naïve\n\n\tcafés — 你好 🙂\r\n x_y ''  "
    tokenizer = tokenizer_of(METADATA | {"tokenizer.ggml.pre": pre})
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_and_user_defined_tokens_keep_their_kinds() -> None:
    tokenizer = tokenizer_of(METADATA)
    assert tokenizer.control_tokens.texts == {"<|end|>", "<|turn|>"}
    assert tokenizer.encode("<think>") == [2]
    assert tokenizer.decode([2, 0]) == "<think>"


def test_every_end_is_an_end() -> None:
    assert tokenizer_of(METADATA).eos_ids == {0, 1}


def test_the_start_token_is_added_when_the_file_says_so() -> None:
    assert not tokenizer_of(METADATA).adds_bos
    told = tokenizer_of(METADATA | {"tokenizer.ggml.add_bos_token": True})
    assert told.encode("x")[0] == 1
    assert tokenizer_of(METADATA | {"tokenizer.ggml.pre": "llama-bpe"}).adds_bos


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model", "llama", "kind 'llama'; supported from GGUF: gpt2"),
        ("model", None, "supported"),
        ("pre", "viking", "'viking'"),
        ("pre", None, "None"),
        ("pre", ["smollm"], "smollm"),
        ("tokens", None, "tokens"),
        ("tokens", ["a", "a"], "different"),
        ("merges", ["a b c"], "pairs"),
        ("merges", None, "pairs"),
        ("merges", ["zz yy"], "cannot be read"),
        ("token_type", None, "token_type"),
        ("token_type", TYPES[:-1], "token_type"),
        ("bos_token_id", len(TOKENS), "bos_token_id"),
        ("eos_token_id", "x", "eos_token_id"),
    ],
)
def test_what_does_not_fit_together_is_refused(key: str, value: object, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        tokenizer_of(METADATA | {f"tokenizer.ggml.{key}": value})
