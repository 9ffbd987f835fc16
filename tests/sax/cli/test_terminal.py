"""Plain output: no control characters, aligned columns."""

from __future__ import annotations

import pytest

from sax.cli.terminal import aligned, show_table


def test_columns_are_two_spaces_apart_without_trailing_blanks() -> None:
    assert aligned([["A", "B"], ["long", ""], ["x", "y"]]) == "A     B\nlong\nx     y"


def test_a_table_in_a_pipe_is_plain_and_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["NAME", "REASON"], [["m", "why " * 100 + "\x1b[31mred\nnext"]])
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "REASON"]
    assert row.endswith("\\x1b[31mred next")
