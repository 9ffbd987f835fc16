"""Texts end before a line that is indented too little, wherever they are cut into pieces."""

from __future__ import annotations

from http_gateway.llama_cpp.reply import IndentLimit
from tests.each_case import each_case


def shown(least: int, *pieces: str) -> tuple[str, bool]:
    limit = IndentLimit(least)
    made = [limit.push(piece, last=n == len(pieces) - 1) for n, piece in enumerate(pieces)]
    return "".join(made), limit.ended


@each_case("least, text, kept, ended", [
    (4, "x = 1\n    y\n\tz\n", "x = 1\n    y", True),  # a tab is one blank
    (4, "x = 1\n    y\n     z", "x = 1\n    y\n     z", False),
    (4, "x\n    ", "x\n    ", False),
    (2, "x\n\n  y", "x", True),
    (1, "x\n y\nz", "x\n y", True),
    (0, "x\n\ny", "x\n\ny", False),
    (3, "", "", False),
])  # fmt: skip
def test_a_text_ends_before_a_line_with_fewer_blanks(
    least: int, text: str, kept: str, ended: bool
) -> None:
    assert shown(least, text) == (kept, ended)
    assert shown(least, *text, "") == (kept, ended)
