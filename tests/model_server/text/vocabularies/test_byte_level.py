"""tiktoken's own ids, and one error for every damage."""

import base64
import json
from typing import Any

import pytest

from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabularies.byte_level import (
    TIKTOKEN_FAMILIES,
    is_tiktoken,
    read_ranks,
    tekken,
    tiktoken,
)
from model_server.text.vocabularies.vocabulary import AddedToken
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.text.vocabularies.golden import PLACE, answers, differences, streamed

QWEN = (PLACE / "qwen.tiktoken").read_bytes()
LLAMA3 = (PLACE / "llama3.model").read_bytes()
END = AddedToken(id=420, text="<|endoftext|>", control=True)
BEGIN = AddedToken(id=421, text="<|begin_of_text|>", control=True)


def whole(count: int) -> bytes:
    """A file of as many tokens as a family's: the bytes, then pairs and triples of them."""
    tokens = [*(bytes([b]) for b in range(256))]
    tokens += [number.to_bytes(3, "big") for number in range(count - 256)]
    return b"".join(base64.b64encode(t) + f" {i}\n".encode() for i, t in enumerate(tokens))


@pytest.mark.parametrize(
    ("name", "data", "model_type"), [("qwen", QWEN, "qwen"), ("llama3", LLAMA3, "llama")]
)
def test_ids_and_texts_are_those_of_tiktoken(name: str, data: bytes, model_type: str) -> None:
    tokenizer = HfTokenizer(tiktoken(data, model_type, [END]).serialized())
    assert differences(tokenizer, name) == []
    for _, ids, _ in answers(name):
        assert streamed(tokenizer, ids) == tokenizer.decode(ids)
    assert tokenizer.encode_chat("<|endoftext|>") == [420]
    assert 420 not in tokenizer.encode("<|endoftext|>")


def test_digits_go_together_by_threes_in_llama_3_only() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"12": 256, b"123": 257}
    data = b"".join(base64.b64encode(t) + f" {rank}\n".encode() for t, rank in ranks.items())
    added = [AddedToken(id=300, text="<|endoftext|>", control=True)]
    llama3, qwen = (
        HfTokenizer(tiktoken(data, kind, added).serialized()) for kind in ("llama", "qwen")
    )
    assert llama3.encode("1234") == [257, ord("4")]
    assert qwen.encode("1234") == list(b"1234")


def test_a_word_that_is_a_token_needs_no_merges() -> None:
    data = b"".join(base64.b64encode(bytes([byte])) + f" {byte}\n".encode() for byte in range(256))
    data += base64.b64encode(b"abc") + b" 256\n"
    added = [AddedToken(id=300, text="<|endoftext|>", control=True)]
    tokenizer = HfTokenizer(tiktoken(data, "qwen", added).serialized())
    assert tokenizer.encode("abc") == [256]
    assert tokenizer.encode("abcd") == list(b"abcd")


@pytest.mark.extended
@pytest.mark.parametrize("model_type", TIKTOKEN_FAMILIES)
def test_a_family_knows_its_control_tokens(model_type: str) -> None:
    family = TIKTOKEN_FAMILIES[model_type]
    vocabulary = tiktoken(whole(family.ranks), model_type)
    by_text = {token.text: token.id for token in vocabulary.added}
    assert len(by_text) == len(family.control)
    assert min(by_text.values()) == family.ranks
    assert vocabulary.eos == family.eos


def test_the_published_ids_of_control_tokens() -> None:
    llama, qwen = (TIKTOKEN_FAMILIES[name] for name in ("llama", "qwen"))
    ids = {text: llama.ranks + place for place, text in enumerate(llama.control)}
    assert ids["<|begin_of_text|>"] == 128000
    assert ids["<|start_header_id|>"] == 128006
    assert ids["<|eot_id|>"] == 128009
    assert ids["<|reserved_special_token_247|>"] == 128255
    assert qwen.control.index("<|im_end|>") + qwen.ranks == 151645
    assert len(qwen.control) + qwen.ranks == 151851


def test_only_tokens_that_are_there_start_and_end() -> None:
    with_start = tiktoken(LLAMA3, "llama", [BEGIN])
    assert (with_start.bos, with_start.adds_bos, with_start.eos) == (BEGIN.text, True, None)
    without = tiktoken(LLAMA3, "llama", [END])
    assert (without.bos, without.adds_bos) == (None, False)


def test_a_file_is_known_by_its_first_line() -> None:
    assert is_tiktoken(QWEN)
    assert not is_tiktoken((PLACE / "bpe_llama.model").read_bytes())
    assert not is_tiktoken(b"")
    assert not is_tiktoken(b'{"a": 1}\n')


@each_case(
    "data, words",
    [
        (QWEN + b"AAE\n", "line 421 is not a token"),
        (QWEN + b"A 500\n", "line 421 is not a token"),
        (QWEN + b"AAE= x\n", "line 421"),
        (QWEN + b"AAE= 7\n", "the same rank"),
        (QWEN + b"AA== 600\n", "a second rank"),
        (QWEN[: QWEN.index(b" 200\n") + 5], "no token for the byte"),
        (QWEN + b"/////w== 420\n", "<|endoftext|>.* has id 420"),
    ],
)
def test_a_damaged_file_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words.replace("|endof", r"\|endof")):
        tiktoken(data, "qwen", [END])


def test_a_truncated_file_of_a_known_family_is_refused_with_both_counts() -> None:
    with pytest.raises(CheckpointError, match="420 tokens where its family has 151643"):
        tiktoken(QWEN, "qwen")


def test_an_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="'kimi'.*tokenizer.json"):
        tiktoken(QWEN, "kimi", [END])


def test_empty_lines_do_not_count() -> None:
    assert read_ranks(b"\n" + QWEN + b"\n") == read_ranks(QWEN)


TEKKEN: dict[str, Any] = json.loads((PLACE / "tekken.json").read_text())
RESERVED = 24


def settings(**changes: Any) -> dict[str, Any]:
    return TEKKEN | {"config": TEKKEN["config"] | changes}


def test_ids_and_texts_are_those_of_tiktoken_of_tekken_file() -> None:
    vocabulary = tekken(TEKKEN)
    tokenizer = HfTokenizer(vocabulary.serialized(), bos=vocabulary.bos)
    assert differences(tokenizer, "tekken") == []
    for _, ids, _ in answers("tekken"):
        assert streamed(tokenizer, ids) == tokenizer.decode(ids)
    assert tokenizer.encode("a")[0] == 1
    assert tokenizer.encode_chat("<s>[INST]a[/INST]") == [1, 3, RESERVED + ord("a"), 4]
    assert not set(range(RESERVED)) & set(tokenizer.encode("</s>[INST]<unk>", add_bos=False))


def test_tokens_beyond_the_size_are_left_out() -> None:
    tokenizer = HfTokenizer(tekken(TEKKEN).serialized())
    assert tokenizer.vocab_size == TEKKEN["config"]["default_vocab_size"]
    assert tokenizer.encode("not used") != [tokenizer.vocab_size]


def test_reserved_ids_have_names_of_their_own() -> None:
    texts = [token.text for token in tekken(TEKKEN).added]
    assert len(texts) == RESERVED
    assert texts[20:] == ["<SPECIAL_20>", "<SPECIAL_21>", "<SPECIAL_22>", "<SPECIAL_23>"]


def test_newer_files_list_their_own_control_tokens() -> None:
    listed = [
        {"rank": 0, "token_str": "<unk>", "is_control": True},
        {"rank": 1, "token_str": "<s>", "is_control": True},
        {"rank": 2, "token_str": "</s>", "is_control": True},
        {"rank": 3, "token_str": "[THINK]", "is_control": False},
    ]
    tokens = tekken(TEKKEN | {"special_tokens": listed}).added
    assert [token.text for token in tokens[:5]] == [
        "<unk>",
        "<s>",
        "</s>",
        "[THINK]",
        "<SPECIAL_4>",
    ]
    assert [token.control for token in tokens[:5]] == [True, True, True, False, True]


@each_case(
    "content, words",
    [
        ({}, "not a valid tekken.json: KeyError 'config'"),
        ({"config": {}, "vocab": []}, "KeyError"),
        (TEKKEN | {"vocab": {}}, "truncated"),
        (TEKKEN | {"vocab": TEKKEN["vocab"][:300]}, "not all of 0 to 419: it is truncated"),
        (TEKKEN | {"vocab": [1]}, "TypeError"),
        (TEKKEN | {"vocab": [{"rank": 0, "token_bytes": "?"}]}, "Error"),
        (settings(pattern="("), "cannot be read"),
        (settings(default_vocab_size="x"), "TypeError"),
        (settings(default_num_special_tokens=1, default_vocab_size=421), "no control token"),
        (TEKKEN | {"special_tokens": [{"rank": 0, "token_str": "<SPECIAL_1>"}]}, "twice"),
    ],
)
def test_a_damaged_file_is_refused_of_tekken_file(content: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        HfTokenizer(tekken(content).serialized())
