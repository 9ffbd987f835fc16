"""saxutil's tables."""

from __future__ import annotations

from sax.cli.saxutil.ascii_table import as_number, comma_separated, drawn
from tests.each_case import each_case


def test_a_table_is_boxes_with_capitals_and_numbers_on_the_right() -> None:
    assert drawn(("generate", "Score"), [("two\nlines", "-1.5"), ("b", "-10")]).splitlines() == [
        "+----------+-------+",
        "| GENERATE | SCORE |",
        "+----------+-------+",
        "| two      |  -1.5 |",
        "| lines    |       |",
        "| b        |   -10 |",
        "+----------+-------+",
    ]


def test_a_table_without_rows_has_its_headings() -> None:
    assert drawn(("a",), []).splitlines() == ["+---+", "| A |", "+---+"]


def test_what_a_model_writes_does_not_steer_the_terminal() -> None:
    assert "\\x1b[2J" in drawn(("text",), [("\x1b[2J",)])


def test_csv_has_its_headings_in_a_comment() -> None:
    assert comma_separated(("#", "Model ID"), [("0", "m")]) == "# #,Model ID\n0,m"


@each_case(
    "value, text", [(-1.5, "-1.5"), (1e-9, "1E-09"), (123456789.0, "1.2345679E+08"), (0.0, "0")]
)
def test_scores_have_eight_digits(value: float, text: str) -> None:
    assert as_number(value) == text
