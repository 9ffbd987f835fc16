"""Answers of a conversation in the terminal: reasoning is told apart from the text."""

from __future__ import annotations

from sax.chat import AnswerFormat
from sax.cli.conversation import DividedPrinter
from sax.types import TokenChunk


def shown(*texts: str, form: AnswerFormat | None = None) -> tuple[str, str, str, str]:
    """What is written and what is reasoned, and both of the message that is remembered."""
    parts, written, reasoned = list[str](), list[str](), list[str]()
    printer = DividedPrinter((), parts, written.append, reasoned.append, stream=True)
    chunks = [TokenChunk(text, answer_format=None if n else form) for n, text in enumerate(texts)]
    printer.print(chunks)
    message = printer.message()
    assert "".join(written) == "".join(parts)
    return "".join(written), "".join(reasoned), "".join(message.texts), message.reasoning


def test_reasoning_is_no_part_of_the_text_whether_the_model_is_known_for_it_or_not() -> None:
    told = "Four.", "two and two", "Four.", "two and two"
    assert shown("<th", "ink>two and", " two</think>\n\nFo", "ur.") == told
    known = AnswerFormat(reasoning="think", reasoning_open=True)
    assert shown("two and two", "</think>", "Four.", form=known) == told


def test_a_text_without_reasoning_comes_as_it_is_written() -> None:
    assert shown(" 1 < 2 and", " <think> is a word") == (
        " 1 < 2 and <think> is a word",
        "",
        " 1 < 2 and <think> is a word",
        "",
    )
