"""Calls of earlier turns: their arguments to the letter, also where they were cut, and ids."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from model_server.text.rendering.past_calls import INVALID_JSON, read_arguments, with_ids
from sax.call_form import IdForm
from sax.chat import Message, ToolCall
from tests.each_case import each_case


@each_case("source, value", [
    ("", {}),
    ('{"a":1.50}', {"a": 1.5}),
    ('{"a": "x', {"a": "x"}),
    ('{"a": "x\\', {"a": "x"}),
    ('{"a": "x\\u00', {"a": "x"}),
    ('{"a": "x", "b', {"a": "x"}),
    ('{"a": "x", "b":', {"a": "x"}),
    ('{"a": [1, {"b": "c"', {"a": [1, {"b": "c"}]}),
    ('{"a": 1, "b": tr', {"a": 1}),
    ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
    ('{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    ("{", {}),
    ("{a: 1}", {INVALID_JSON: "{a: 1}"}),
])  # fmt: skip
def test_arguments_are_read_also_where_they_were_cut(source: str, value: dict[str, Any]) -> None:
    read = read_arguments(source)
    assert read is not None
    assert read[0] == value
    json.loads(read[1])


@each_case("source", ["[]", "3", '"{}"', "[" * 99_999, "null"])
def test_what_is_no_object_is_none(source: str) -> None:
    assert read_arguments(source) is None


def test_whole_arguments_stay_as_the_model_wrote_them() -> None:
    source = '{"a":1e2,  "b": "\\u00e9"}'
    read = read_arguments(source)
    assert read is not None
    assert read[1] == source


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.integers(1))
def test_any_beginning_of_arguments_is_an_object(values: dict[str, Any], cut: int) -> None:
    whole = json.dumps(values)
    read = read_arguments(whole[: 1 + cut % len(whole)])
    assert read is not None
    assert INVALID_JSON not in read[0]
    assert read[0].keys() <= values.keys() | {""} or cut % len(whole) < len(whole)


def chat(*ids: str) -> tuple[Message, ...]:
    calls = tuple(ToolCall(id, "f") for id in ids)
    results = (Message("tool", "r", tool_call_id=id) for id in ids)
    return (Message("assistant", "", tool_calls=calls), *results)


def ids_in(turns: tuple[Message, ...]) -> tuple[list[str], list[str]]:
    return [call.id for call in turns[0].tool_calls], [turn.tool_call_id for turn in turns[1:]]


@each_case("form, given, made", [
    (IdForm.ANY, ["call_1", "x"], ["call_1", "x"]),
    (IdForm.FUNCTIONS, ["functions.f:0", "functions.f:1"], ["functions.f:0", "functions.f:1"]),
    (IdForm.FUNCTIONS, ["call_1", "call_2"], ["functions.f:0", "functions.f:1"]),
    (IdForm.SHORT, ["a1b2c3d4e"], ["a1b2c3d4e"]),
])  # fmt: skip
def test_ids_are_kept_where_the_template_takes_them(
    form: str, given: list[str], made: list[str]
) -> None:
    assert ids_in(with_ids(chat(*given), form)) == (made, made)


def test_other_ids_become_short_ones_the_same_every_time() -> None:
    calls, results = ids_in(with_ids(chat("call_abc", "toolu_xyz"), IdForm.SHORT))
    assert calls == results
    assert len({*calls}) == 2
    assert all(len(id) == 9 and id.isalnum() for id in calls)
    assert ids_in(with_ids(chat("call_abc"), IdForm.SHORT))[0] == calls[:1]
