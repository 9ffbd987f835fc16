"""tekken.json: tiktoken's ids after the control tokens, and one error for every damage."""

import json
from typing import Any

import pytest

from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabularies.tekken_file import tekken
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.text.vocabularies.golden import PLACE, answers, differences, streamed

TEKKEN: dict[str, Any] = json.loads((PLACE / "tekken.json").read_text())
RESERVED = 24


def settings(**changes: Any) -> dict[str, Any]:
    return TEKKEN | {"config": TEKKEN["config"] | changes}


def test_ids_and_texts_are_those_of_tiktoken() -> None:
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
def test_a_damaged_file_is_refused(content: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        HfTokenizer(tekken(content).serialized())
