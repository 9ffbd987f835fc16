"""An answer of `lm.generate -stream`."""

from __future__ import annotations

import pytest

from sax.cli.saxutil.model_verbs import StreamedAnswer


def test_texts_grow_from_their_prefixes_and_the_last_scores_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = StreamedAnswer(redraws=False)
    answer.take(False, [("ab", 0, [-1.0]), ("x", 0, [-3.0])])
    answer.take(False, [("c", 1, [-1.5]), ("", 1, [-3.0])])
    assert capsys.readouterr().out == ""
    answer.take(True, [])
    assert capsys.readouterr().out == "ac\n\nx\n\n"
    assert answer.scores() == "Scores: -1.5, -3"


def test_several_kinds_of_score_have_a_line_each() -> None:
    answer = StreamedAnswer(redraws=False)
    answer.take(False, [("a", 0, [-1.0, 2.0])])
    answer.take(False, [("b", 1, [-2.0, 5.0])])
    assert answer.scores() == "Total Scores[0]: -2\nTotal Scores[1]: 5"


def test_a_terminal_sees_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    answer = StreamedAnswer(redraws=True)
    answer.take(False, [("a", 0, [-1.0])])
    answer.take(True, [])
    assert capsys.readouterr().out == "\033[H\033[2Ja\n\n" * 2
