"""Prompts around an answer have the marks of their model, in its order."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from model_server.text.fill_in import fill_in_of
from model_server.text.token_bytes import byte_alphabet
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from sax.errors import UnsupportedParameter
from tests.each_case import each_case

_LETTERS = sorted(byte_alphabet())


def tokenizer(*marks: str, special: bool = True, **more: Any) -> HfTokenizer:
    """A tokenizer of letters, with a start token and these marks."""
    made = tokenizers.Tokenizer(
        models.BPE(vocab={letter: id for id, letter in enumerate(_LETTERS)}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    made.add_tokens([tokenizers.AddedToken(mark, special=special) for mark in marks])
    return HfTokenizer(made.to_str(), bos="<s>", adds_bos=True, **more)


@each_case(
    "marks, special, wanted",
    [
        (
            ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
            True,
            ["<s>", "<|fim_prefix|>", "a", "<|fim_suffix|>", "b", "<|fim_middle|>"],
        ),
        (
            ("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
            False,
            ["<s>", "<fim_prefix>", "a", "<fim_suffix>", "b", "<fim_middle>"],
        ),
        (
            (
                "<\uff5cfim\u2581hole\uff5c>",
                "<\uff5cfim\u2581begin\uff5c>",
                "<\uff5cfim\u2581end\uff5c>",
            ),
            True,
            [
                *("<s>", "<\uff5cfim\u2581begin\uff5c>", "a", "<\uff5cfim\u2581hole\uff5c>", "b"),
                "<\uff5cfim\u2581end\uff5c>",
            ],
        ),
        (("[SUFFIX]", "[PREFIX]", "[MIDDLE]"), True, ["<s>", "[SUFFIX]", "b", "[PREFIX]", "a"]),
    ],
)
def test_texts_stand_where_the_model_learnt_them(
    marks: tuple[str, ...], special: bool, wanted: list[str]
) -> None:
    made = tokenizer(*marks, special=special)
    ids = fill_in_of(made).ids("a", "b", made, add_bos=True)
    assert [made.token_text(each) for each in ids] == wanted
    without = fill_in_of(made).ids("a", "b", made, add_bos=False)
    assert [made.token_text(each) for each in without] == wanted[1:]


def test_marks_that_a_file_names_come_before_those_that_are_known() -> None:
    marks = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<A>", "<B>", "<C>", "<EOT>")
    ids = [len(_LETTERS) + 1 + marks.index(mark) for mark in ("<A>", "<B>", "<C>")]
    made = tokenizer(*marks, middle_ids=tuple(ids))
    found = fill_in_of(made)
    told = [made.token_text(each) for each in found.ids("a", "", made, add_bos=True)]
    assert told == ["<s>", "<A>", "a", "<B>", "<C>"]
    assert [made.token_text(each) for each in found.ends] == ["<EOT>"]


def test_a_model_without_such_marks_is_named() -> None:
    for made in (tokenizer("<|fim_prefix|>"), ByteTokenizer(300)):
        with pytest.raises(UnsupportedParameter, match="no tokens for filling in the middle"):
            fill_in_of(made)
