"""The pairs of -extra."""

from __future__ import annotations

import pytest

from sax.cli.saxutil.verb import as_number, comma_separated, drawn, options_of
from sax.errors import InvalidRequest
from tests.each_case import each_case


def test_numbers_are_numbers_and_the_rest_are_texts() -> None:
    options = options_of("temperature:0.2,mode:fast,id:'7',n:1e2", 60)
    told = options.ToProto()
    assert dict(told.items) == pytest.approx({"temperature": 0.2, "n": 100.0})
    assert dict(told.strings) == {"mode": "fast", "id": "7"}
    assert options.GetTimeout() == 60


def test_nothing_given_is_nothing_sent() -> None:
    assert not options_of("", 1).extra_inputs


@pytest.mark.parametrize("extra", ["temperature", "a:b:c", "a:1,,b:2"])
def test_what_is_no_pair_is_refused(extra: str) -> None:
    with pytest.raises(InvalidRequest, match="key:value"):
        options_of(extra, 1)


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
