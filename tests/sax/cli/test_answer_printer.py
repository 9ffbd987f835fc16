"""Markdown on a terminal, as its text comes in pieces."""

from __future__ import annotations

import pytest

from sax.cli.answer_printer import MarkdownText


def printed(capsys: pytest.CaptureFixture[str], *pieces: str) -> list[str]:
    with MarkdownText() as text:
        for piece in pieces:
            text.write(piece)
    return [line.strip() for line in capsys.readouterr().out.strip().splitlines()]


def test_a_list_is_one_list_wherever_its_pieces_end(capsys: pytest.CaptureFixture[str]) -> None:
    whole = "* **a**\n* **b**\n* c"
    expected = printed(capsys, whole)
    assert expected == ["• a", "• b", "• c"]
    for end in range(1, len(whole)):
        assert printed(capsys, whole[:end], whole[end:]) == expected, end
