"""Score is told in the same terms as Generate: the same prompt, and the tokens of the same text."""

from __future__ import annotations

from pathlib import Path

import pytest

from sax import Client
from tests.end_to_end.cell import SMOLLM2, Cell

RAW = "/sax/test/raw"
QUESTION = "What is the capital of France?"
START = "The capital of France is"  # which an instruct model continues even as bare text
GREEDY = {"temperature": 0.0, "per_example_max_decode_steps": 6}  # too few for an end token


def test_the_score_of_a_generated_text_is_the_one_it_was_generated_with(served: Cell) -> None:
    check_score(served, SMOLLM2, QUESTION)


@pytest.mark.nightly
def test_so_is_the_score_of_what_a_model_without_a_template_generated(
    served: Cell, gguf: Path
) -> None:
    served.publish(str(gguf), model=RAW, overrides={"QUERY_FORMAT": "raw"})
    try:
        check_score(served, RAW, START)
    finally:
        served.sax("unpublish", RAW)


def check_score(cell: Cell, model: str, prompt: str) -> None:
    with Client(cell.plan.admin_address) as client:
        ((text, generated),) = client.saxml_generate(model, prompt, GREEDY)
        (scored,) = client.score(model, prompt, [text])
    assert scored == pytest.approx(generated, abs=1e-2), text


def test_a_suffix_is_scored_as_the_model_would_continue_the_prefix(served: Cell) -> None:
    """In a chat it is the assistant's answer: the right one is likelier by far."""
    words = "score", SMOLLM2, QUESTION, "The capital of France is Paris.", "It is Rome."
    result = served.sax(*words)
    assert result.returncode == 0, result.stderr
    right, wrong = map(float, result.stdout.split())
    assert right > wrong + 5
