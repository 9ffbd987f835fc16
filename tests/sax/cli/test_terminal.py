"""Plain output: no control characters, aligned columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.cli.terminal import aligned, printable, say, show_table


@pytest.mark.extended
@given(st.text())
def test_printable_text_cannot_steer_a_terminal(text: str) -> None:
    shown = printable(text)
    assert not any(ord(c) < 0x20 and c not in "\n\t" for c in shown)
    assert not any(0x7F <= ord(c) < 0xA0 for c in shown)


def test_ordinary_text_is_left_alone() -> None:
    assert printable("Zürich\t日本\n") == "Zürich\t日本\n"
    assert printable("\x1b[2J") == "\\x1b[2J"


def test_columns_are_two_spaces_apart_without_trailing_blanks() -> None:
    assert aligned([["A", "B"], ["long", ""], ["x", "y"]]) == "A     B\nlong\nx     y"


def test_a_table_in_a_pipe_is_plain_and_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["NAME", "REASON"], [["m", "why " * 100 + "\x1b[31mred\nnext"]])
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "REASON"]
    assert row.endswith("\\x1b[31mred next")


def test_messages_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("hello")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")
