"""Answers that are recorded: the same for any pieces of a stream and any run of one build."""

from __future__ import annotations

from typing import Any

from sax.fields.field import Kind, RequestField, RequestRoute
from tests.tools.answers.canonical import canonical, merged
from tests.tools.answers.record import differences, folded, unfolded
from tests.tools.answers.values import values_of, wrong_of


def events(*texts: str) -> list[tuple[str, Any]]:
    """A chat of two answers in these pieces each, and its end."""
    told: list[tuple[str, Any]] = [
        ("", {"object": "chunk", "choices": [{"index": index, "delta": {"content": text}}]})
        for text in texts
        for index in (0, 1)
    ]
    return [*told, ("", "[DONE]")]


def test_a_stream_is_told_alike_whatever_its_pieces() -> None:
    whole, *end = merged(events("abc"))
    assert merged(events("a", "", "bc")) == [whole, *end]
    assert [each["delta"]["content"] for each in whole["choices"]] == ["abc", "abc"]
    assert merged(events("ab")) != [whole, *end]
    first, second = ({"type": kind, "delta": "a", "sequence_number": 7} for kind in "xy")
    assert merged([("", first), ("", second)]) != merged([("", second), ("", first)])
    assert merged([("", first), ("", first)]) == [{"type": "x", "delta": "aa"}]


def test_ids_times_and_places_are_left_out_and_floats_rounded() -> None:
    told = {"id": "chatcmpl-" + "0f" * 16, "created": 5, "eval_duration": 7, "logprob": -0.123456}
    expected = {"id": "chatcmpl-<id>", "created": "<time>", "eval_duration": "<time>"}
    assert canonical(told, {}) == expected | {"logprob": -0.1235}
    text = "lost 127.0.0.1:2034 in /tmp/x at 2026-11-28T10:00:00Z"
    assert canonical(text, {"/tmp/x": "<f>"}) == "lost <address> in <f> at <time>"
    assert canonical([0.5] * 99, {}) == {"first": [0.5] * 8, "numbers": 99, "rms": 0.5}


def test_what_differs_is_told_by_name_and_equal_answers_are_kept_once() -> None:
    told = {"b": {"x": 1.0}, "a": {"x": 1.0}, "c": {"x": [1, "y"]}}
    assert folded(told) == {"a": {"x": 1.0}, "b": "= a", "c": {"x": [1, "y"]}}
    assert differences(unfolded(folded(told)), told | {"a": {"x": 1.0001}}) == []
    (less,) = differences(told, {"a": told["a"], "b": told["b"]})
    assert less == 'c\n  was {"x": [1, "y"]}\n  is  "not asked"'
    (other,) = differences(told, told | {"a": {"x": 1.001}})
    assert other.startswith("a\n")


def test_a_new_field_is_asked_at_the_ends_and_the_middle_and_beyond() -> None:
    routes = (RequestRoute.CHAT,)
    new = RequestField(name="new", kind=Kind.NUMBER, routes=routes, above=0, most=2)
    assert values_of(new) == [0.01, 1, 2]
    assert wrong_of(new) == [-1, 3, "many"]
    flag = RequestField(name="new", kind=Kind.FLAG, routes=routes)
    assert (values_of(flag), wrong_of(flag)) == ([False, True], ["maybe"])
