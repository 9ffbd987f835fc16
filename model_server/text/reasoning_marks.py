"""The marks around a model's reasoning, and how the model writes their surroundings."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from model_server.text.tokenizer import Tokenizer
from sax.chat import ReasoningParser


class ReasoningMarks(NamedTuple):
    """Texts around reasoning."""

    opens: str
    closes: str
    before: str = ""  # the closing mark, at the end of the reasoning
    after: str = ""  # the closing mark, before the answer
    called: str = ""  # after the closing mark, in place of `after`, where a call may follow


_HARMONY = ReasoningMarks(
    opens="<|channel|>analysis<|message|>",
    closes="<|end|>",
    after="<|start|>assistant<|channel|>final<|message|>",
    called="<|start|>assistant",
)
_LINES = r"(?:\\n|\n)"


@lru_cache(maxsize=64)
def reasoning_marks(
    reasoning: str, template: str, thoughts: tuple[str, str]
) -> ReasoningMarks | None:
    """Return the marks of a form of reasoning; None: there is none.

    template: the model's, which tells the lines between reasoning, mark and answer. thoughts: the
    marks around reasoning of the kind THINK.
    """
    if reasoning == ReasoningParser.GPT_OSS:
        return _HARMONY
    if reasoning != ReasoningParser.THINK:
        return None
    # Where the opening mark comes right before, there is no reasoning between them.
    opens, closes = map(re.escape, thoughts)
    around = re.compile(rf"({opens})?({_LINES}+){closes}({_LINES}*)")
    written = (each.groups() for each in around.finditer(template) if not each[1])
    _, before, after = next(written, ("", "\n", "\n\n"))
    lines = (part.replace("\\n", "\n") for part in (before, after or "\n\n"))
    return ReasoningMarks(*thoughts, *lines)


def ending_ids(marks: ReasoningMarks, tokenizer: Tokenizer, *, may_call: bool) -> tuple[int, ...]:
    """Return the tokens that end the reasoning: the closing mark with its surroundings."""
    after = marks.called if may_call and marks.called else marks.after
    ids = tokenizer.encode_chat(marks.closes + after)
    if tokenizer.token_bytes(ids[0]) == marks.closes.encode():
        return (*(tokenizer.encode_continuation(marks.before) if marks.before else ()), *ids)
    return tuple(tokenizer.encode_continuation(marks.before + marks.closes + after))
