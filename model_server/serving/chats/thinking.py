"""How long an answer may reason, and whether it begins inside the reasoning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from model_server.engine.parts.thinking import ReasoningForm, ThinkingBudget
from model_server.loading.loaded import Loaded
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat
from model_server.text.reasoning_marks import ReasoningMarks, ending_ids, reasoning_marks
from sax.chat import THINKING_TOKENS, ReasoningParser
from sax.errors import UnsupportedParameter
from sax.types import ChatOptions, GenerateRequest, Message


class ReasoningOf(NamedTuple):
    """Reasoning of one answer: its form, and its bound if it has one."""

    form: ReasoningForm
    budget: ThinkingBudget | None


def reasoning_of(
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
    marks = reasoning_marks(loaded.dialect.reasoning, template, loaded.dialect.thoughts)
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
    ends = ending_ids(marks, loaded.tokenizer, may_call=request.chat.may_call)
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
        return reasons_already(request, loaded, prompt)
    if isinstance(prompt, str):
        return prompt.rfind(marks.opens) > prompt.rfind(marks.closes)
    ids = [part for part in prompt if isinstance(part, int)]
    opens, closes = (loaded.tokenizer.encode_chat(mark) for mark in (marks.opens, marks.closes))
    return _last(ids, opens[0]) > _last(ids, closes[0]) if len(opens) == len(closes) == 1 else False


def _last(ids: Sequence[int], token: int) -> int:
    """Return the last place of a token; -1: it is not there."""
    return len(ids) - 1 - ids[::-1].index(token) if token in ids else -1


def reasons_already(
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
