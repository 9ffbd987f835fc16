"""An answer of reasoning, content and calls: what divides it, and the constraint that forces calls.

The gateway divides the text; this side knows how the model writes, and tells it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from model_server.engine.parts.thinking import ReasoningForm, ThinkingBudget
from model_server.engine.types import Grammar
from model_server.grammars.call_format import after_channels, after_thoughts, call_format
from model_server.grammars.constraint import Constraint, check_end, constrained_format
from model_server.loading.loaded import Loaded
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat
from model_server.text.dialect import THINK, kinds_of
from model_server.text.tokenizer import Tokenizer
from sax.chat import THINKING_TOKENS, AnswerFormat, ReasoningParser, ToolParser
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.types import ChatOptions, GenerateRequest, Message

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
    reasoning = _reasoning_of(request, loaded, prompt)
    if not (request.chat.divided and isinstance(prompt, RenderedChat)):
        return UNDIVIDED if reasoning is None else AnswerDivision(reasoning=reasoning)
    dialect, calls = loaded.dialect, request.chat.may_call
    is_open = _reasons_already(request, loaded, prompt)
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
    is_open = _reasons_already(request, loaded, prompt)
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


class ReasoningOf(NamedTuple):
    """Reasoning of one answer: its form, and its bound if it has one."""

    form: ReasoningForm
    budget: ThinkingBudget | None


def _reasoning_of(
    request: GenerateRequest, loaded: Loaded, prompt: Prompt | RenderedChat
) -> ReasoningOf | None:
    """Return how an answer reasons, and how long at most; None: the model never does, or there is
    no bound and the answer is not divided.

    `max_thinking_tokens` counts more than the effort of a chat. Raises UnsupportedParameter for an
    effort with a beam search.
    """
    most = request.sampling.max_thinking_tokens
    if most is None:
        most = _by_effort(request.chat, loaded)
    if most is None and not (request.chat.divided and isinstance(prompt, RenderedChat)):
        return None
    template = "" if loaded.chat_template is None else loaded.chat_template.source
    marks = _reasoning_marks(loaded.dialect.reasoning, template, loaded.dialect.thoughts)
    if marks is None:
        return None
    form = ReasoningForm(
        marks.opens.encode(),
        marks.closes.encode(),
        _is_open(request, loaded, prompt, marks),
        loaded.tokenizer.token_bytes,
    )
    if most is None:
        return ReasoningOf(form, None)
    _check_beams(request)
    ends = _ending_ids(marks, loaded.tokenizer, may_call=request.chat.may_call)
    return ReasoningOf(form, ThinkingBudget(most, ends, form))


def _check_beams(request: GenerateRequest) -> None:
    if request.sampling.beam_size:
        raise UnsupportedParameter(
            "reasoning_effort would bound the reasoning, which a beam search cannot: leave it out, "
            "or use_beam_search",
            param="reasoning_effort",
        )


def _by_effort(chat: ChatOptions, loaded: Loaded) -> int | None:
    """Return the bound of an effort that the model's template has no word for."""
    if "reasoning_effort" not in chat.chat_template_kwargs:
        return None
    template = loaded.chat_template
    if template is None or template.knows("reasoning_effort"):
        return None
    return THINKING_TOKENS.get(json.loads(chat.chat_template_kwargs).get("reasoning_effort"))


def _is_open(
    request: GenerateRequest,
    loaded: Loaded,
    prompt: Prompt | RenderedChat,
    marks: ReasoningMarks,
) -> bool:
    if isinstance(prompt, RenderedChat):
        return _reasons_already(request, loaded, prompt)
    if isinstance(prompt, str):
        return prompt.rfind(marks.opens) > prompt.rfind(marks.closes)
    ids = [part for part in prompt if isinstance(part, int)]
    opens, closes = (loaded.tokenizer.encode_chat(mark) for mark in (marks.opens, marks.closes))
    return _last(ids, opens[0]) > _last(ids, closes[0]) if len(opens) == len(closes) == 1 else False


def _last(ids: Sequence[int], token: int) -> int:
    """Return the last place of a token; -1: it is not there."""
    return len(ids) - 1 - ids[::-1].index(token) if token in ids else -1


def _reasons_already(
    request: GenerateRequest, loaded: Loaded, prompt: Prompt | RenderedChat
) -> bool:
    """Return True if the prompt ends inside the model's reasoning."""
    if loaded.dialect.reasoning is not ReasoningParser.THINK:
        return False
    if not isinstance(prompt, RenderedChat):
        return False
    opens, closes = loaded.dialect.thoughts
    if not request.chat.continue_final_message:
        return prompt.text.rstrip().endswith(opens)
    last = request.prompt[-1]
    begun = "".join(last.texts) if isinstance(last, Message) else ""
    return begun.rfind(opens) > begun.rfind(closes)


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
def _reasoning_marks(
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


def _ending_ids(marks: ReasoningMarks, tokenizer: Tokenizer, *, may_call: bool) -> tuple[int, ...]:
    """Return the tokens that end the reasoning: the closing mark with its surroundings."""
    after = marks.called if may_call and marks.called else marks.after
    ids = tokenizer.encode_chat(marks.closes + after)
    if tokenizer.token_bytes(ids[0]) == marks.closes.encode():
        return (*(tokenizer.encode_continuation(marks.before) if marks.before else ()), *ids)
    return tuple(tokenizer.encode_continuation(marks.before + marks.closes + after))
