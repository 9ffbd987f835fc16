"""What divides an answer is told with its first token; constraints hold behind the reasoning, whose
length has a bound.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from model_server.engine.parts.thinking import ThinkingBudget
from model_server.engine.types import RowResult
from model_server.grammars.constraint import Constraint
from model_server.loading.loaded import Loaded
from model_server.serving.answers.detokenizer import Detokenizer
from model_server.serving.chats.divided_answer import (
    UNDIVIDED,
    AnswerDivision,
    constraint_on,
    division_of,
)
from model_server.serving.chats.rendered_chat import RenderedChat, check_options
from model_server.serving.handler import GENERATE_STREAM, Handler
from model_server.text.chat_template import ChatTemplate
from model_server.text.dialect import AnswerDialect
from model_server.text.tokenizer import HfTokenizer
from sax.call_form import HERMES
from sax.chat import (
    THINKING_TOKENS,
    AnswerFormat,
    ChatOptions,
    Message,
    ReasoningParser,
    Tool,
    ToolParser,
)
from sax.errors import InvalidRequest, SaxError, UnsupportedParameter
from sax.types import AnswerSoFar, GenerateRequest, ModelSpec, SamplingParams, TokenChunk
from tests.model_server.checkpoints.tiny_folder import tokenizer_json
from tests.model_server.fake_model import FakeModels
from tests.model_server.refusals import refusal
from tests.model_server.serving.chats.test_rendered_chat import CHAT, LOADED
from tests.model_server.serving.test_handler import handling

QWEN = AnswerDialect(ToolParser.HERMES, ReasoningParser.THINK, HERMES)
GPT_OSS = AnswerDialect(ToolParser.GPT_OSS, ReasoningParser.GPT_OSS)
TOOL = Tool("f", "", '{"type": "object"}')
OPEN, CLOSED = RenderedChat("user: hi\n<think>\n"), RenderedChat("user: <think>hi</think>\n")
JSON = Constraint("json_schema", '{"type": "array"}')


def request(**options: Any) -> GenerateRequest:
    chat = ChatOptions(**{"tools": (TOOL,), "divided": True, **options})
    return GenerateRequest(model_id="m", prompt=(Message("user", "hi"),), chat=chat)


def loaded(dialect: AnswerDialect) -> Any:
    return replace(LOADED, dialect=dialect)


def test_the_format_says_how_the_answer_is_written_and_if_it_reasons_already() -> None:
    told = division_of(request(), loaded(QWEN), OPEN)
    assert told.format == AnswerFormat("hermes", "think", True, HERMES)
    assert told.marks == {"<think>", "</think>", "<tool_call>", "</tool_call>"}
    without = division_of(request(tool_choice="none"), loaded(QWEN), CLOSED)
    assert (without.format, without.marks) == (
        AnswerFormat("none", "think"),
        {"<think>", "</think>"},
    )


def test_nothing_is_told_of_other_answers() -> None:
    assert division_of(request(divided=False), loaded(QWEN), OPEN) == UNDIVIDED
    assert division_of(request(), loaded(QWEN), "text") == UNDIVIDED


def test_a_continued_message_may_end_inside_the_reasoning() -> None:
    for content, is_open in (("<think>Hm", True), ("<think>Hm</think>So", False), ("So", False)):
        message = Message("assistant", content)
        asked = replace(request(continue_final_message=True), prompt=(message,))
        told = division_of(asked, loaded(QWEN), RenderedChat(content))
        assert told.format is not None
        assert told.format.reasoning_open == is_open, content


def test_a_constraint_stays_as_it_is_where_nothing_comes_first() -> None:
    asked = request(tools=())
    assert constraint_on(JSON, asked, loaded(QWEN), CLOSED) == JSON
    assert constraint_on(JSON, asked, loaded(AnswerDialect()), OPEN) == JSON
    assert constraint_on(JSON, asked, loaded(QWEN), "text") == JSON
    assert constraint_on(None, request(), loaded(QWEN), OPEN) is None


def test_a_constraint_holds_behind_the_reasoning() -> None:
    constraints = [
        JSON,
        Constraint("json_object", True),
        Constraint("regex", "[a-z]+"),
        Constraint("choice", ("a", "b")),
        Constraint("grammar", 'root ::= "a"'),
        Constraint("structural_tag", '{"format": {"type": "any_text"}}'),
    ]
    for dialect, mark in ((QWEN, "</think>"), (GPT_OSS, "<|channel|>final")):
        for constraint in constraints:
            made = constraint_on(constraint, request(tools=()), loaded(dialect), OPEN)
            assert made is not None, (constraint, mark)
            assert (made.field, mark in str(made.value)) == ("structural_tag", True), constraint


def test_calls_are_forced_and_json_may_stand_beside_them() -> None:
    forced = constraint_on(None, request(tool_choice="required"), loaded(QWEN), CLOSED)
    either = constraint_on(JSON, request(), loaded(QWEN), CLOSED)
    assert forced is not None
    assert either is not None
    assert forced.field == either.field == "tools"
    assert '"array"' in str(either.value)
    assert json.loads(str(forced.value))["format"]["type"] == "or"


def test_what_does_not_go_with_calls_is_refused_by_name() -> None:
    for constraint, sampling, param in (
        (Constraint("structural_tag", '{"structures": []}'), SamplingParams(), "structural_tag"),
        (None, SamplingParams(ignore_eos=True), "ignore_eos"),
        (None, SamplingParams(beam_size=2), "use_beam_search"),
    ):
        asked = replace(request(tool_choice="required"), sampling=sampling)
        told = refusal(constraint_on, constraint, asked, loaded(QWEN), CLOSED)
        assert told.kind is not None
        assert (issubclass(told.kind, InvalidRequest), told.param) == (True, param)


def test_tools_need_a_known_dialect() -> None:
    with pytest.raises(UnsupportedParameter, match="TOOL_PARSER"):
        constraint_on(None, request(), loaded(AnswerDialect()), CLOSED)
    assert constraint_on(None, request(tool_choice="none"), loaded(AnswerDialect()), OPEN) is None


def test_schemas_that_are_too_large_to_be_forced_are_refused() -> None:
    large = tuple(Tool(f"f{n}", "", json.dumps({"title": "x" * 60_000})) for n in range(10))
    with pytest.raises(InvalidRequest, match="send fewer tools") as refused:
        constraint_on(None, request(tools=large, tool_choice="required"), loaded(QWEN), OPEN)
    assert refused.value.param == "tools"


def test_options_of_strangers_are_checked() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required", "tools": ()}, "tool_choice"),
        ({"tools": (Tool("f", "x" * 30_000, "y" * 60_000),) * 12}, "tools"),
    ]
    for options, param in cases:
        told = refusal(check_options, request(**options).chat)
        assert told.kind is not None, param
        assert (issubclass(told.kind, InvalidRequest), told.param) == (True, param)


def test_marks_have_text_and_other_control_tokens_have_none() -> None:
    tokenizer = HfTokenizer(tokenizer_json(), bos="<|turn|>", eos=["<|stop|>"])
    turn, stop = tokenizer.encode_chat("<|turn|><|stop|>")
    told = AnswerFormat("hermes", "think")
    division = AnswerDivision(told, frozenset({"<|turn|>", "<|none|>"}))
    made = Detokenizer(tokenizer, [1], SamplingParams(), division=division, own_text=True)
    first = made.push(RowResult(turn, -0.5), None)
    second = made.push(RowResult(stop, -0.5), None)
    assert (first.text, first.answer_format) == ("<|turn|>", told)
    assert (second.text, second.answer_format) == ("", None)


MODEL = "/sax/test/fake"
assert isinstance(LOADED, Loaded)
PLAIN = LOADED
THINKS = replace(LOADED, dialect=AnswerDialect(reasoning=ReasoningParser.THINK))
HARMONY = replace(LOADED, dialect=AnswerDialect(ToolParser.GPT_OSS, ReasoningParser.GPT_OSS))
OPEN_PROMPT, CLOSED_PROMPT = RenderedChat("user: hi\n<think>\n"), RenderedChat("user: hi\n")


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
    made = budget_of(asked(7), THINKS, OPEN_PROMPT)
    assert made is not None
    assert (made.most, made.form.is_open, made.form.opens, made.form.closes) == (
        7,
        True,
        b"<think>",
        b"</think>",
    )
    assert bytes(made.ends) == b"\n</think>\n\n"
    divided = asked(None, divided=True)
    unbounded = division_of(divided, THINKS, OPEN_PROMPT)
    assert unbounded.budget is None
    assert unbounded.reasoning is not None
    assert unbounded.reasoning.form == made.form
    for case, request, loaded in (
        ("no number", asked(None), THINKS),
        ("no reasoning", asked(7), PLAIN),
        ("effort none, no reasoning", asked(None, **efforts("none")), PLAIN),
    ):
        assert budget_of(request, loaded, OPEN_PROMPT) is None, case


def test_an_effort_stands_for_a_number_where_the_template_has_no_word_for_it() -> None:
    knows = replace(THINKS, chat_template=ChatTemplate("{{ reasoning_effort }}"))
    for effort, tokens in THINKING_TOKENS.items():
        made = budget_of(asked(None, **efforts(effort)), THINKS, CLOSED_PROMPT)
        assert (None if made is None else made.most) == tokens, effort
        assert budget_of(asked(None, **efforts(effort)), knows, CLOSED_PROMPT) is None, effort
        made = budget_of(asked(3, **efforts(effort)), THINKS, CLOSED_PROMPT)
        assert made is not None
        assert made.most == 3, effort


def test_an_effort_that_would_bound_a_beam_search_is_refused_by_name() -> None:
    searched = replace(asked(None, **efforts("low")), sampling=SamplingParams(beam_size=2))
    with pytest.raises(UnsupportedParameter) as refused:
        budget_of(searched, THINKS, CLOSED_PROMPT)
    assert refused.value.param == "reasoning_effort"
    assert budget_of(searched, PLAIN, CLOSED_PROMPT) is None


def test_a_prompt_may_end_inside_the_reasoning() -> None:
    ids = tuple(b"<think>")
    for prompt, is_open in (
        ("<think>Hm", True),
        ("<think>Hm</think>", False),
        ("Hm", False),
        (ids, False),  # no token of its own
        (CLOSED_PROMPT, False),
        (OPEN_PROMPT, True),
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
        made = budget_of(asked(1), loaded, CLOSED_PROMPT)
        assert made is not None
        assert bytes(made.ends) == ending, source


def test_harmony_goes_on_in_its_final_channel_unless_it_may_call() -> None:
    made = budget_of(asked(1), HARMONY, CLOSED_PROMPT)
    assert made is not None
    assert bytes(made.ends) == b"<|end|><|start|>assistant<|channel|>final<|message|>"
    made = budget_of(asked(1, tools=(Tool("f"),)), HARMONY, CLOSED_PROMPT)
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
