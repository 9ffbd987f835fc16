"""An answer of reasoning, content and calls: what divides it, and the constraint that forces calls.

The gateway divides the text; this side knows how the model writes, and tells it.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from model_server.engine.parts.thinking import ThinkingBudget
from model_server.engine.types import Grammar
from model_server.grammars.call_format import after_channels, after_thoughts, call_format
from model_server.grammars.constraint import Constraint, check_end, constrained_format
from model_server.loading.loaded import Loaded
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat
from model_server.serving.chats.thinking import ReasoningOf, reasoning_of, reasons_already
from model_server.text.dialect import THINK, kinds_of
from sax.chat import AnswerFormat, ReasoningParser, ToolParser
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.types import GenerateRequest

_MOST_FORMAT = 512 << 10  # characters


class AnswerDivision(NamedTuple):
    """Division of one answer into reasoning, content and calls."""

    format: AnswerFormat | None = None  # told in its first chunk
    marks: frozenset[str] = frozenset()  # control tokens that have text
    reasoning: ReasoningOf | None = None  # None: it is neither counted nor bounded

    @property
    def budget(self) -> ThinkingBudget | None:
        return None if self.reasoning is None else self.reasoning.budget


UNDIVIDED = AnswerDivision()


def division_of(
    request: GenerateRequest, loaded: Loaded, prompt: Prompt | RenderedChat
) -> AnswerDivision:
    """Return what divides the answer to a prompt, if that was asked for, and bounds its parts."""
    reasoning = reasoning_of(request, loaded, prompt)
    if not (request.chat.divided and isinstance(prompt, RenderedChat)):
        return UNDIVIDED if reasoning is None else AnswerDivision(reasoning=reasoning)
    dialect, calls = loaded.dialect, request.chat.may_call
    is_open = reasons_already(request, loaded, prompt)
    thinks = dialect.reasoning is ReasoningParser.THINK and dialect.thoughts != THINK
    told = AnswerFormat(
        dialect.tools if calls else ToolParser.NONE,
        dialect.reasoning,
        is_open,
        dialect.calls if calls else None,
        kinds_of(dialect.calls, request.chat.tools) if calls else {},
        dialect.thoughts if thinks else None,
        calls and dialect.generic,
    )
    return AnswerDivision(told, dialect.marks(calls), reasoning)


def constraint_on(
    constraint: Constraint | None,
    request: GenerateRequest,
    loaded: Loaded,
    prompt: Prompt | RenderedChat,
) -> Constraint | None:
    """Return the constraint on the whole answer: calls that are forced, reasoning before it.

    Raises InvalidRequest and UnsupportedParameter, naming the field.
    """
    if not isinstance(prompt, RenderedChat):
        return constraint
    dialect, chat = loaded.dialect, request.chat
    is_open = reasons_already(request, loaded, prompt)
    first = chat.may_call or is_open or dialect.reasoning is ReasoningParser.GPT_OSS
    other = None
    if constraint is not None and first:
        other = constrained_format(constraint)
    made = call_format(dialect, chat, other, reasoning_open=is_open)
    if made is not None:
        check_end(request.sampling, "tool_choice")
        if request.sampling.beam_size:
            raise UnsupportedParameter(
                "a beam search cannot be made to call tools: leave out use_beam_search, or strict "
                "and tool_choice",
                param="use_beam_search",
            )
        return _within_bound(json.dumps({"format": made}, ensure_ascii=False))
    if constraint is None or other is None:
        return constraint
    if dialect.reasoning is ReasoningParser.GPT_OSS:
        other = after_channels(other)
    else:
        other = after_thoughts(other, dialect.thoughts, reasoning_open=True)
    return Constraint("structural_tag", json.dumps({"format": other}, ensure_ascii=False))


def _within_bound(format: str) -> Constraint:
    """Raises InvalidRequest for a format that is too large to be kept compiled."""
    if len(format) > _MOST_FORMAT:
        raise InvalidRequest(
            f"the schemas of tools make a grammar of {len(format)} characters; at most "
            f"{_MOST_FORMAT} can be forced: send fewer tools, or leave out tool_choice and strict",
            param="tools",
        )
    return Constraint("tools", format)


async def compiled(constraint: Constraint, loaded: Loaded) -> Grammar:
    """Return the compiled constraint. Raises as `GrammarCompiler.compile`."""
    if loaded.grammars is None:
        raise UnsupportedParameter(
            f"{constraint.field} is not supported by this model: leave it out",
            param=constraint.field,
        )
    return await loaded.grammars.compile(constraint)
