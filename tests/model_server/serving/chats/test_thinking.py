"""How long an answer may reason: by a number, or by an effort that the template has no word for."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from model_server.engine.parts.thinking import ThinkingBudget
from model_server.loading.loaded import Loaded
from model_server.serving.chats.divided_answer import division_of
from model_server.serving.chats.rendered_chat import RenderedChat
from model_server.serving.handler import GENERATE_STREAM, Handler
from model_server.text.chat_template import ChatTemplate
from model_server.text.dialect import AnswerDialect
from sax.chat import THINKING_TOKENS, ChatOptions, ReasoningParser, Tool, ToolParser
from sax.errors import SaxError, UnsupportedParameter
from sax.types import AnswerSoFar, GenerateRequest, ModelSpec, SamplingParams, TokenChunk
from tests.model_server.fake_model import FakeModels
from tests.model_server.serving.chats.test_rendered_chat import CHAT, LOADED
from tests.model_server.serving.test_handler import handling

MODEL = "/sax/test/fake"
assert isinstance(LOADED, Loaded)
PLAIN = LOADED
THINKS = replace(LOADED, dialect=AnswerDialect(reasoning=ReasoningParser.THINK))
HARMONY = replace(LOADED, dialect=AnswerDialect(ToolParser.GPT_OSS, ReasoningParser.GPT_OSS))
OPEN, CLOSED = RenderedChat("user: hi\n<think>\n"), RenderedChat("user: hi\n")


def asked(most: int | None, prompt: Any = CHAT, **chat: Any) -> GenerateRequest:
    return GenerateRequest(
        model_id=MODEL,
        prompt=prompt,
        sampling=SamplingParams(max_thinking_tokens=most),
        chat=ChatOptions(**chat),
    )


def budget_of(request: GenerateRequest, loaded: Loaded, prompt: Any) -> ThinkingBudget | None:
    return division_of(request, loaded, prompt).budget


def efforts(effort: str) -> dict[str, str]:
    return {"chat_template_kwargs": json.dumps({"reasoning_effort": effort})}


def test_a_number_bounds_the_reasoning_of_a_model_that_reasons() -> None:
    made = budget_of(asked(7), THINKS, OPEN)
    assert made is not None
    assert (made.most, made.form.is_open, made.form.opens, made.form.closes) == (
        7,
        True,
        b"<think>",
        b"</think>",
    )
    assert bytes(made.ends) == b"\n</think>\n\n"
    divided = asked(None, divided=True)
    unbounded = division_of(divided, THINKS, OPEN)
    assert unbounded.budget is None
    assert unbounded.reasoning is not None
    assert unbounded.reasoning.form == made.form
    for case, request, loaded in (
        ("no number", asked(None), THINKS),
        ("no reasoning", asked(7), PLAIN),
        ("effort none, no reasoning", asked(None, **efforts("none")), PLAIN),
    ):
        assert budget_of(request, loaded, OPEN) is None, case


def test_an_effort_stands_for_a_number_where_the_template_has_no_word_for_it() -> None:
    knows = replace(THINKS, chat_template=ChatTemplate("{{ reasoning_effort }}"))
    for effort, tokens in THINKING_TOKENS.items():
        made = budget_of(asked(None, **efforts(effort)), THINKS, CLOSED)
        assert (None if made is None else made.most) == tokens, effort
        assert budget_of(asked(None, **efforts(effort)), knows, CLOSED) is None, effort
        made = budget_of(asked(3, **efforts(effort)), THINKS, CLOSED)
        assert made is not None
        assert made.most == 3, effort


def test_an_effort_that_would_bound_a_beam_search_is_refused_by_name() -> None:
    searched = replace(asked(None, **efforts("low")), sampling=SamplingParams(beam_size=2))
    with pytest.raises(UnsupportedParameter) as refused:
        budget_of(searched, THINKS, CLOSED)
    assert refused.value.param == "reasoning_effort"
    assert budget_of(searched, PLAIN, CLOSED) is None


def test_a_prompt_may_end_inside_the_reasoning() -> None:
    ids = tuple(b"<think>")
    for prompt, is_open in (
        ("<think>Hm", True),
        ("<think>Hm</think>", False),
        ("Hm", False),
        (ids, False),  # no token of its own
        (CLOSED, False),
        (OPEN, True),
    ):
        made = budget_of(asked(1, prompt), THINKS, prompt)
        assert made is not None
        assert made.form.is_open == is_open, prompt


def test_lines_around_the_mark_are_those_of_the_template() -> None:
    for source, ending in (
        ("{{ '<think>\\n' + m + '\\n</think>\\n\\n' + c }}", b"\n</think>\n\n"),
        ("{{ '<think>\\n\\n</think>\\n\\n' }}{{ '\\n</think>\\n' }}", b"\n</think>\n"),
        ("{{ c.split('</think>')[-1] }}", b"\n</think>\n\n"),
    ):
        loaded = replace(THINKS, chat_template=ChatTemplate(source))
        made = budget_of(asked(1), loaded, CLOSED)
        assert made is not None
        assert bytes(made.ends) == ending, source


def test_harmony_goes_on_in_its_final_channel_unless_it_may_call() -> None:
    made = budget_of(asked(1), HARMONY, CLOSED)
    assert made is not None
    assert bytes(made.ends) == b"<|end|><|start|>assistant<|channel|>final<|message|>"
    made = budget_of(asked(1, tools=(Tool("f"),)), HARMONY, CLOSED)
    assert made is not None
    assert bytes(made.ends) == b"<|end|><|start|>assistant"


class Thinkers(FakeModels):
    def __call__(self, spec: ModelSpec, report: object) -> Loaded:
        loaded = super().__call__(spec, lambda progress: None)
        assert isinstance(loaded, Loaded)
        return replace(loaded, dialect=THINKS.dialect)


async def test_an_answer_begun_inside_the_reasoning_ends_it_in_time_also_on_another_replica() -> (
    None
):
    async def answer(handler: Handler, request: GenerateRequest) -> tuple[int, ...]:
        chunks: list[TokenChunk] = []
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def sink(chunk: TokenChunk | SaxError) -> None:
            assert isinstance(chunk, TokenChunk), chunk
            chunks.append(chunk)
            if chunk.finish_reason:
                ended.set_result(None)

        handler.start(request, GENERATE_STREAM, sink)
        await ended
        return tuple(token for chunk in chunks for token in chunk.token_ids)

    request = asked(5, "<think>")
    request = replace(request, sampling=replace(request.sampling, temperature=0, max_tokens=24))
    async with handling(Thinkers()) as handler:
        whole = await answer(handler, request)
        assert bytes(whole[5:16]) == b"\n</think>\n\n"
        for begun in (3, 5, 9, 20):
            rest = replace(request, answer=AnswerSoFar(token_ids=whole[:begun]))
            assert await answer(handler, rest) == whole[begun:], begun
