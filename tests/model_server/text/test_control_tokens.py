"""What a user wrote survives guard and split, and never comes out as a control token."""

import re

from hypothesis import given
from hypothesis import strategies as st

from model_server.text.control_tokens import MARK, ChatPiece, ControlTokens

TOKENS = ("<|a|>", "<|a|><|b|>", "<s>", "$")
PIECES = st.lists(st.sampled_from([*TOKENS, MARK, "<", "|a|>", "s>", "x", " ", "\n"])).map("".join)


def test_a_written_control_token_is_text_and_a_template_one_is_control() -> None:
    control = ControlTokens(TOKENS)
    rendered = "<s>" + control.guard("say <s> now") + "<|a|>"
    assert list(control.split(rendered)) == [
        ChatPiece("<s>", control=True),
        ChatPiece("say <s> now", control=False),
        ChatPiece("<|a|>", control=True),
    ]


def test_the_longest_control_token_wins() -> None:
    control = ControlTokens(TOKENS)
    assert list(control.split("<|a|><|b|>")) == [ChatPiece("<|a|><|b|>", control=True)]


def test_text_without_control_tokens_is_not_touched() -> None:
    assert ControlTokens(TOKENS).guard("a < b | c") == "a < b | c"


def test_a_model_without_control_tokens_has_nothing_to_guard() -> None:
    control = ControlTokens(())
    assert control.guard("<s>") == "<s>"
    assert list(control.split("<s>")) == [ChatPiece("<s>", control=False)]


def test_a_mark_cut_off_at_the_end_is_dropped() -> None:
    assert list(ControlTokens(TOKENS).split("x" + MARK)) == [ChatPiece("x", control=False)]


@given(PIECES)
def test_a_guarded_text_comes_back_whole_and_plain(text: str) -> None:
    control = ControlTokens(TOKENS)
    pieces = list(control.split(control.guard(text)))
    assert all(not piece.control for piece in pieces)
    assert "".join(piece.text for piece in pieces) == text


@given(PIECES, PIECES)
def test_guarded_texts_beside_template_tokens_stay_apart(first: str, second: str) -> None:
    control = ControlTokens(TOKENS)
    rendered = f"<s>{control.guard(first)}<s>{control.guard(second)}<s>"
    pieces = list(control.split(rendered))
    assert [piece.text for piece in pieces if piece.control] == ["<s>"] * 3
    text = "|".join(piece.text for piece in pieces if not piece.control)
    assert re.sub(r"\|", "", text) == re.sub(r"\|", "", first + second)
