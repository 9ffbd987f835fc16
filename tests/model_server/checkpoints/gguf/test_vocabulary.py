"""Every kind of tokenizer that a folder may hold goes into a GGUF file, or is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from model_server.text.token_bytes import byte_alphabet
from model_server.text.vocabularies.sentence_piece import SPACE, PieceKind, Pieces, sentence_piece
from model_server.text.vocabularies.word_piece import word_piece
from sax.errors import CheckpointError
from tests.model_server.checkpoints.tiny_folder import write_json, write_tiny

WORDS = ["the", "he", "th", f"{SPACE}t", f"{SPACE}the", f"{SPACE}a", "ab", "aba", "\n\n"]
LETTERS = [SPACE, *"abehot", "\n"]
KINDS = ["space first", "no space first", "words"]


def pieces(*, starts_with_space: bool) -> Pieces:
    """A SentencePiece model whose merges are not in the order of its ids."""
    control = ["<unk>", "<s>", "</s>"]
    texts = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), "<tool>", *WORDS, *LETTERS]
    kinds = [
        PieceKind.UNKNOWN,
        PieceKind.CONTROL,
        PieceKind.CONTROL,
        *[PieceKind.BYTE] * 256,
        PieceKind.USER_DEFINED,
    ]
    kinds += [PieceKind.NORMAL] * (len(WORDS) + len(LETTERS))
    scores = [0.0] * 260 + [-float(5 + i * 7 % 11) for i in range(len(WORDS))]
    return Pieces(
        unigram=False,
        texts=texts,
        scores=scores + [-1000.0] * len(LETTERS),
        kinds=kinds,
        byte_fallback=True,
        starts_with_space=starts_with_space,
    )


def serialized(kind: str, **settings: Any) -> str:
    if kind == "words":
        control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words = ["the", "t", "##he", "a", "##b", "##a", ".", "1", "hello", "Hello"]
        return word_piece([*control, *words], **settings).serialized()
    model = pieces(starts_with_space=kind == "space first")
    return sentence_piece(model, bos="<s>", adds_bos=True).serialized()


def folder_with(tokenizer_json: str, tmp_path: Path) -> Path:
    vocab = json.loads(tokenizer_json)["model"]["vocab"]
    folder = write_tiny(tmp_path / "a", vocab_size=len(vocab) + 3)
    settings = {} if "[CLS]" in vocab else {"bos_token": "<s>", "eos_token": "</s>"}
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "generation_config.json", {})
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"bos_token_id": None, "eos_token_id": None})
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    return folder


def test_ends_that_readers_find_by_their_texts_need_no_place_in_the_file(tmp_path: Path) -> None:
    """GGUF has three; two of these five are found."""
    folder = write_tiny(tmp_path / "a")
    path = folder / "tokenizer.json"
    renamed = {"<|stop|>": "<|im_end|>", "<|turn|>": "<|eot_id|>"}
    text = path.read_text()
    for old, new in renamed.items():
        text = text.replace(json.dumps(old), json.dumps(new))
    path.write_text(text)
    write_json(folder / "tokenizer_config.json", {"bos_token": "<|end|>"})
    write_json(folder / "generation_config.json", {"eos_token_id": [4, 1, 2, 5, 6]})
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"eos_token_id": 4})
    convert(str(folder), str(tmp_path / "a.gguf"))
    assert open_checkpoint(str(tmp_path / "a.gguf")).tokenizer().eos_ids >= {4, 1, 2, 5, 6}
    write_json(folder / "generation_config.json", {"eos_token_id": [4, 1, 2, 5, 6, 7]})
    with pytest.raises(CheckpointError, match="4 end tokens; GGUF holds 3"):
        convert(str(folder), str(tmp_path / "b.gguf"))


@pytest.mark.parametrize("kind", KINDS)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(text=st.text(alphabet="abehot. \n1é🙂", max_size=20))
def test_the_file_gives_the_same_tokens(tmp_path: Path, kind: str, text: str) -> None:
    path = tmp_path / "x.gguf"
    if not path.exists():
        convert(str(folder_with(serialized(kind), tmp_path)), str(path))
    before = open_checkpoint(str(tmp_path / "a")).tokenizer()
    after = open_checkpoint(str(path)).tokenizer()
    for given_text in (text, f"<tool>{text}<s>"):
        ids = before.encode(given_text)
        assert after.encode(given_text) == ids
        assert after.decode(ids) == before.decode(ids)
        assert after.encode_chat(given_text) == before.encode_chat(given_text)
    assert after.adds_bos == before.adds_bos
    assert after.eos_ids == before.eos_ids


def refused(tokenizer_json: str, tmp_path: Path, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        convert(str(folder_with(tokenizer_json, tmp_path)), str(tmp_path / "x.gguf"))


def test_words_in_capitals_are_refused(tmp_path: Path) -> None:
    """GGUF does not say it, and its readers take small letters for granted."""
    refused(serialized("words", lowercase=False), tmp_path, "GGUF has no name for")


def test_a_cut_without_a_name_is_refused(tmp_path: Path) -> None:
    letters = sorted(byte_alphabet())
    model = {
        "type": "BPE",
        "vocab": {letter: i for i, letter in enumerate(letters)},
        "merges": [letters[:2]],
    }
    cut = {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    byte_level |= {"trim_offsets": True}
    model["vocab"] |= {"<s>": 256, "</s>": 257, letters[0] + letters[1]: 258}
    steps = {"type": "Sequence", "pretokenizers": [cut, byte_level]}
    whole = {"added_tokens": [], "pre_tokenizer": steps, "decoder": byte_level, "model": model}
    refused(json.dumps(whole), tmp_path, "GGUF has no name for.*smollm")


def test_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1, "a": 2}, "unk_token": "a"}
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    whole = {"added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    whole |= {"decoder": decoder}
    refused(json.dumps(whole), tmp_path, "a WordLevel tokenizer cannot be written")


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = folder_with(serialized("space first"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"vocab_size": 100})
    with pytest.raises(CheckpointError, match="the id 27[0-9], and its vocab_size is 100"):
        convert(str(folder), str(tmp_path / "x.gguf"))
