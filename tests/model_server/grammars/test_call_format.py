"""Forced calls: whatever the masks allow, the gateway reads as calls whose arguments are valid."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.grammars.call_format import after_thoughts, call_format
from model_server.grammars.compiler import GrammarCompiler
from model_server.grammars.constraint import Constraint
from model_server.text.dialect import AnswerDialect, kinds_of
from sax.call_form import (
    COMMAND,
    DEEPSEEK,
    DEEPSEEK_FENCED,
    GEMMA,
    HERMES,
    LFM2,
    LLAMA3,
    MISTRAL,
    MISTRAL_LIST,
    NAME,
    NAMED_FORMS,
    Arguments,
    CallForm,
)
from sax.chat import AnswerFormat, ChatOptions, ReasoningParser, Tool, ToolParser
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import CollectedAnswer
from sax.errors import InvalidRequest, UnsupportedParameter
from tests.each_case import each_case
from tests.model_server.grammars.test_compiler import tokenizer, walk
from tests.model_server.grammars.test_grammar_state import matcher_of

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = (Tool("get_weather", "", json.dumps(WEATHER)), Tool("now"))
_CLOSED = {"additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "now": {"type": "object", "maxProperties": 0}}
QWEN_CODER = CallForm(
    Arguments.PAIRS,
    mark="<tool_call>",
    head=f"<tool_call>\n<function={NAME}>",
    tail="\n</function>\n</tool_call>",
    between="\n",
    pair="\n<parameter=",
    colon={"": ">\n"},
    close="\n</parameter>",
)
DSML = CallForm(
    Arguments.PAIRS,
    mark="<calls>",
    begin="\n\n<calls>",
    head=f'\n<invoke name="{NAME}">',
    tail="\n</invoke>",
    end="\n</calls>",
    pair='\n<parameter name="',
    colon={
        "string": '" string="true">',
        **dict.fromkeys(("number", "boolean", "null", "array", "object"), '" string="false">'),
    },
    close="</parameter>",
)
GEMMA_4 = CallForm(
    Arguments.LOOSE,
    mark="<|tool_call>",
    head=f"<|tool_call>call:{NAME}",
    tail="<tool_call|>",
    quote='<|"|>',
)
MINIMAX_M3 = CallForm(
    Arguments.TAGS,
    mark="]<]minimax[>[<tool_call>",
    begin="]<]minimax[>[<tool_call>",
    head=f'\n]<]minimax[>[<invoke name="{NAME}">',
    tail="]<]minimax[>[</invoke>",
    end="\n]<]minimax[>[</tool_call>",
    pair="]<]minimax[>[<",
    colon={"": ">"},
    close="]<]minimax[>[</",
    item="item",
)
FORMS = (
    *(HERMES, LLAMA3, MISTRAL, MISTRAL_LIST, GEMMA, DEEPSEEK, DEEPSEEK_FENCED, LFM2),
    *(COMMAND, QWEN_CODER, DSML, GEMMA_4, MINIMAX_M3),
)
DIALECTS = [AnswerDialect("learnt", calls=form) for form in FORMS]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), tokenizer().vocab_size)


def made(dialect: AnswerDialect, *, reasoning_open: bool = False, **options: Any) -> Constraint:
    chat = ChatOptions(**{"tools": TOOLS, "tool_choice": "required", **options})
    format = call_format(dialect, chat, None, reasoning_open=reasoning_open)
    return Constraint("tools", json.dumps({"format": format}))


def divided(
    text: str, dialect: AnswerDialect, *, is_open: bool = False, tools: tuple[Tool, ...] = TOOLS
) -> tuple[list[tuple[str, Any]], str]:
    """The calls and the content of an answer."""
    kinds = kinds_of(dialect.calls, tools)
    format = AnswerFormat(dialect.tools, dialect.reasoning, is_open, dialect.calls, kinds)
    if dialect.tools == ToolParser.GPT_OSS:
        format = AnswerFormat(dialect.tools, ReasoningParser.GPT_OSS)
    parser = AnswerParser(format, [tool.name for tool in tools])
    said = CollectedAnswer()
    said.add(parser.push(text))
    said.add(parser.finish())
    return [(call.name, json.loads(call.arguments)) for call in said.calls], said.content


@pytest.mark.extended
@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_a_forced_answer_is_valid_calls_and_nothing_else(
    compiler: GrammarCompiler, dialect: AnswerDialect
) -> None:
    text = walk(compiler, made(dialect), 1)
    calls, content = divided(text, dialect)
    assert calls, text
    assert not content, text
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])


@each_case("dialect", DIALECTS)
def test_keys_with_any_text_in_them_are_forced_and_read_back(
    compiler: GrammarCompiler, dialect: AnswerDialect
) -> None:
    keys = ("a,b", "a:b", "{", "}", "a b", "a=b", 'say "x"', "f(x", "a>b", "plain")
    parts = {key: {"const": number} for number, key in enumerate(keys)}
    schema = {"type": "object", "properties": parts, "required": [*keys]}
    tool = Tool("f", "", json.dumps({**schema, "additionalProperties": False}))
    forced = made(dialect, tools=(tool,), parallel_tool_calls=False)
    calls, content = divided(walk(compiler, forced, 1), dialect, tools=(tool,))
    assert (calls, content) == ([("f", {key: n for n, key in enumerate(keys)})], "")


@cache
def golden() -> dict[str, AnswerDialect]:
    """The dialects that public templates write."""
    told = json.loads(Path("tests/golden/calls.json").read_text())
    made = {
        family: msgspec.convert(each["dialect"], AnswerDialect) for family, each in told.items()
    }
    return {
        family: replace(dialect, reasoning=ReasoningParser.NONE)
        for family, dialect in made.items()
        if dialect.calls is not None
    }


@pytest.mark.nightly
@pytest.mark.parametrize("family", golden())
def test_what_the_grammar_of_a_family_allows_is_calls_and_nothing_else(
    compiler: GrammarCompiler, family: str
) -> None:
    dialect = golden()[family]
    for seed in range(25):
        text = walk(compiler, made(dialect), seed)
        calls, content = divided(text, dialect)
        assert calls, text
        assert not content, text
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])


TEXTS = st.sampled_from(["Oslo", "", "a b", " c", "it's", 'say "x"', "1", "null", "{x}", "d, e: f",
                         "<b>", "\n", "\U0001f600"])  # fmt: skip
LEAVES = st.lists(TEXTS, min_size=1, max_size=3).map(lambda texts: {"enum": texts}) | (
    st.sampled_from([{"type": "integer", "minimum": -3, "maximum": 12}, {"type": "boolean"},
                     {"type": "null"}, {"const": 1.5}, {"type": ["boolean", "null"]}])
)  # fmt: skip
NESTED_KEYS = st.sampled_from(["x", "y_z", "a-b", "if", "a,b", "a:b", "{a", "a b"])
KEYS = NESTED_KEYS | st.sampled_from(["}", "a=b", 'say "x"', "f(x", "a>b", "https://x/?y=1&z"])


@st.composite
def objects(
    draw: st.DrawFn, keys: st.SearchStrategy[str], values: st.SearchStrategy[Any]
) -> dict[str, Any]:
    parts = draw(st.dictionaries(keys, values, max_size=4))
    required = [key for key in parts if draw(st.booleans())]
    made = {"type": "object", "properties": parts, "required": required}
    return {**made, "additionalProperties": False}


VALUES = (
    LEAVES
    | LEAVES.map(lambda each: {"type": "array", "items": each})
    | objects(NESTED_KEYS, LEAVES)
)


DISTINCT = {str(dialect.calls): family for family, dialect in golden().items()}


@pytest.mark.nightly
@pytest.mark.parametrize("family", DISTINCT.values())
def test_calls_under_random_schemas_are_read_back_and_valid(
    compiler: GrammarCompiler, family: str
) -> None:
    dialect = golden()[family]

    @settings(max_examples=25, deadline=None)
    @given(objects(KEYS, VALUES), st.integers(0, 2**32))
    def each(schema: dict[str, Any], seed: int) -> None:
        tool = Tool("f", "", json.dumps(schema))
        forced = made(dialect, tools=(tool,), parallel_tool_calls=False)
        text = walk(compiler, forced, seed)
        calls, content = divided(text, dialect, tools=(tool,))
        assert [name for name, _ in calls] == ["f"], text
        assert not content, text
        jsonschema.validate(calls[0][1], schema)

    each()


@each_case("dialect", DIALECTS)
def test_a_function_that_is_named_is_called_once(
    compiler: GrammarCompiler, dialect: AnswerDialect
) -> None:
    options = {"tool_choice": "function", "tool_name": "now", "parallel_tool_calls": True}
    calls, _ = divided(walk(compiler, made(dialect, **options), 1), dialect)
    assert calls == [("now", {})]


def accepts(constraint: Constraint, text: str) -> bool:
    """True if the text is a whole answer."""
    matcher = matcher_of(constraint)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer().encode_continuation(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def calling(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


GOOD, BAD = calling('{"city": "Oslo", "unit": "C"}'), calling('{"city": 3}')
QWEN = AnswerDialect(ToolParser.HERMES, calls=HERMES)
STRICT = Tool("get_weather", "", json.dumps(WEATHER), strict=True)


def test_arguments_of_a_strict_tool_keep_to_its_schema_among_other_text() -> None:
    strict = made(QWEN, tools=(STRICT,), tool_choice="auto")
    assert accepts(strict, "Just text.")
    assert accepts(strict, f"I look. {GOOD}")
    assert not accepts(strict, f"I look. {BAD}")


@each_case("parser", [ToolParser.LLAMA3, ToolParser.GEMMA, ToolParser.GPT_OSS])
def test_strict_tools_work_in_dialects_without_a_mark_in_text(parser: ToolParser) -> None:
    final = "<|channel|>final<|message|>" if parser is ToolParser.GPT_OSS else ""
    begin, end = {
        ToolParser.LLAMA3: ('{"name": "get_weather", "parameters": ', "}"),
        ToolParser.GEMMA: ("[get_weather(city=", ")]"),
        ToolParser.GPT_OSS: (
            "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>", ""
        ),
    }[parser]  # fmt: skip
    good = '"Oslo", unit="C"' if parser is ToolParser.GEMMA else '{"city": "Oslo", "unit": "C"}'
    dialect = AnswerDialect(parser, calls=NAMED_FORMS.get(parser, (None,))[0])
    strict = made(dialect, tools=(STRICT,), tool_choice="auto")
    assert accepts(strict, f"{final}Just text, {{so}}.")
    assert accepts(strict, begin + good + end)
    assert not accepts(strict, f"{begin}3{end}")


@each_case("at, tags, good", [
    ("<x>1.5</x>", "<item>a</item><item>b</item>", True),
    ("<x>1.5</x>", "", True),
    ("<x>1.5</x><y><item>1</item></y>", "", True),
    ("", "", False),
    ("<x>far</x>", "", False),
    ("<x>1.5</x>", "<item>c</item>", False),
    ("<x>1.5</x>", "a", False),
    ("<x>1.5</x><y><item>1.5</item></y>", "", False),
])  # fmt: skip
def test_tags_hold_the_schemas_of_values_within_values(at: str, tags: str, good: bool) -> None:
    inner = {"x": {"type": "number"}, "y": {"type": "array", "items": {"type": "integer"}}}
    parameters = {
        "type": "object",
        "properties": {
            "at": {"type": "object", "properties": inner, "required": ["x"]},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        },
        "required": ["at", "tags"],
        "additionalProperties": False,
    }
    tool = Tool("now", parameters=json.dumps(parameters))
    form = made(AnswerDialect("learnt", calls=MINIMAX_M3), tools=(tool,))
    said = f'<invoke name="now"><at>{at}</at><tags>{tags}</tags></invoke>'.replace(
        "<", "]<]minimax[>[<"
    )
    text = f"]<]minimax[>[<tool_call>\n{said}\n]<]minimax[>[</tool_call>"
    assert accepts(form, text) is good


def test_reasoning_may_come_first_and_must_end_where_it_was_begun() -> None:
    thinking = AnswerDialect(ToolParser.HERMES, ReasoningParser.THINK, HERMES)
    assert accepts(made(thinking), GOOD)
    assert accepts(made(thinking), f"<think>Hm {BAD}</think>\n\n{GOOD}")
    assert accepts(made(thinking, reasoning_open=True), f"Hm.</think>\n\n{GOOD}")
    assert not accepts(made(thinking, reasoning_open=True), GOOD)


def test_an_answer_may_be_json_instead_of_a_call() -> None:
    other = {"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "integer"}}}
    format = call_format(QWEN, ChatOptions(tools=(STRICT,)), other, reasoning_open=False)
    either = Constraint("tools", json.dumps({"format": format}))
    assert [accepts(either, text) for text in ("[1, 2]", GOOD, BAD, "text")] == [True, True, False,
                                                                                False]  # fmt: skip
    after = after_thoughts(other, reasoning_open=True)
    thinking = Constraint("structural_tag", json.dumps({"format": after}))
    assert accepts(thinking, "Hm.</think>[1]")
    assert not accepts(thinking, "[1]")


def test_calls_are_of_the_allowed_tools_only() -> None:
    for choice in ("auto", "required"):
        chat = ChatOptions(tools=TOOLS, tool_choice=choice, allowed_tools=("now",))
        format = call_format(AnswerDialect(ToolParser.HERMES), chat, None, reasoning_open=False)
        made = json.dumps(format)
        assert "now" in made
        assert "get_weather" not in made


def test_nothing_is_forced_where_nothing_is_asked_for() -> None:
    silent = ChatOptions(tools=(STRICT,), tool_choice="none")
    for chat in (ChatOptions(), ChatOptions(tools=TOOLS), silent):
        assert call_format(QWEN, chat, None, reasoning_open=False) is None


def test_what_cannot_be_forced_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedParameter, match="override TOOL_PARSER") as refused:
        made(AnswerDialect())
    assert refused.value.param == "tools"
    with pytest.raises(InvalidRequest) as wrong:
        made(QWEN, tool_choice="function", tool_name="other")
    assert wrong.value.param == "tool_choice"


def test_a_schema_that_nothing_keeps_to_is_refused_as_a_tools() -> None:
    endless = {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    bad = made(QWEN, tools=(Tool("f", "", json.dumps(endless)),))
    with pytest.raises(InvalidRequest) as refused:
        matcher_of(bad)
    assert refused.value.param == "tools"


@each_case("parameters", ["[" * 20_000 + "]" * 20_000, "{", "9" * 5000, "[]"])
def test_parameters_that_are_no_schema_are_the_tools_error(parameters: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        made(QWEN, tool_choice="required", tools=(Tool("f", "", parameters),))
    assert refused.value.param == "tools"


@each_case("dialect", DIALECTS)
def test_a_schema_that_is_none_in_parts_ends_nothing(dialect: AnswerDialect) -> None:
    parts: dict[str, Any] = {"a": 5, "b": {"allOf": 5}, "c": {"type": [7, None]}, "d": {"enum": 1}}
    for wrong in ([{}], 5, None, "a", [["a"], 3]):
        schema = {"type": "object", "properties": parts, "required": wrong}
        made(dialect, tools=(Tool("f", "", json.dumps(schema)),))


@each_case("dialect", DIALECTS)
def test_a_schema_that_only_refers_to_one_is_that_one(
    compiler: GrammarCompiler, dialect: AnswerDialect
) -> None:
    parts = {"code": {"enum": ["31"]}, "count": {"const": 31}}
    named: dict[str, Any] = {"type": "object", "properties": parts, "required": ["code", "count"]}
    named |= {"title": "f", "additionalProperties": False}
    schema = {"$ref": "#/definitions/f", "definitions": {"f": named}}
    tool = Tool("f", "", json.dumps(schema))
    forced = made(dialect, tools=(tool,), parallel_tool_calls=False)
    calls, _ = divided(walk(compiler, forced, 1), dialect, tools=(tool,))
    assert calls == [("f", {"code": "31", "count": 31})]


@each_case("dialect", DIALECTS)
def test_values_within_values_keep_to_the_definitions_that_they_refer_to(
    compiler: GrammarCompiler, dialect: AnswerDialect
) -> None:
    named = {"type": "object", "properties": {"code": {"enum": ["31"]}}, "required": ["code"]}
    refers = {"$ref": "#/$defs/Named"}
    parts: dict[str, Any] = {
        "one": refers | {"description": "as pydantic writes it"},
        "maybe": {"anyOf": [refers, {"type": "null"}], "default": None},
        "many": {"type": "array", "items": refers},
        "colour": {"$ref": "#/$defs/Colour"},
    }
    definitions = {"Named": named | _CLOSED, "Colour": {"enum": ["red", "blue"]}}
    schema = {"type": "object", "properties": parts, "required": [*parts], "$defs": definitions}
    schema |= _CLOSED
    tool = Tool("f", "", json.dumps(schema))
    forced = made(dialect, tools=(tool,), parallel_tool_calls=False)
    for seed in range(3):
        ((_, arguments),), _ = divided(walk(compiler, forced, seed), dialect, tools=(tool,))
        jsonschema.validate(arguments, schema)


@each_case("dialect", [each for each in DIALECTS if each.calls in (GEMMA, QWEN_CODER, GEMMA_4)])
def test_what_is_required_is_written_even_where_no_property_is_named_so(
    compiler: GrammarCompiler, dialect: AnswerDialect
) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["n", "told"],
        "additionalProperties": {"enum": ["yes", "no"]},
    }
    tool = Tool("now", "", json.dumps(schema))
    ((_, arguments),), _ = divided(
        walk(compiler, made(dialect, tools=(tool,), parallel_tool_calls=False), 1), dialect
    )
    jsonschema.validate(arguments, schema)


def test_a_parameter_of_many_parts_that_refer_to_it_is_looked_at_once() -> None:
    itself = {"anyOf": [{"$ref": "#/properties/a"}] * 60 + [{"type": "string"}]}
    tool = Tool("f", "", json.dumps({"type": "object", "properties": {"a": itself}}))
    assert kinds_of(QWEN_CODER, (tool,)) == {"f": {}}
    made(AnswerDialect("learnt", calls=QWEN_CODER), tools=(tool,))


@each_case("form", [MINIMAX_M3, GEMMA_4])
def test_objects_of_many_objects_are_written_out_up_to_a_bound(form: CallForm) -> None:
    inner = {"type": "object", "properties": {f"b{n}": {"type": "integer"} for n in range(60)}}
    for part in ({"$ref": "#"}, inner):
        schema = {"type": "object", "properties": {f"a{n}": part for n in range(60)}}
        tool = Tool("f", "", json.dumps(schema))
        asked = made(AnswerDialect("learnt", calls=form), tools=(tool,))
        assert isinstance(asked.value, str)
        assert len(asked.value) < 8 << 20
        assert len(kinds_of(form, (tool,))["f"]) < 5000
