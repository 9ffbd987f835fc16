"""Rules of CRDs: which hold, which do not, and which are only named."""

from __future__ import annotations

from typing import Any

from tests.each_case import each_case
from tests.k8s.cel import check_rules


def said(rule: str, value: Any, **more: str) -> list[tuple[str, bool]]:
    schema = {"type": "object", "x-kubernetes-validations": [{"rule": rule, **more}]}
    return [(finding.text, finding.note) for finding in check_rules(value, schema, "it")]


@each_case(
    "rule, value",
    [
        ("self.low <= self.high", {"low": 1, "high": 2}),
        ("!has(self.a) || self.a.size() < 4", {}),
        ("self.items.all(i, i.startsWith('a'))", {"items": ["ab", "ac"]}),
        ("self.items.exists_one(i, i == 2)", {"items": [1, 2]}),
        ("self.text.matches('^[a-z]+$')", {"text": "abc"}),
        ("self.text.lowerAscii() == 'abc'", {"text": "ABC"}),
        ("self.text.split(',').size() == 2", {"text": "a,b"}),
        ("self.items.sum() == 6 && self.items.max() == 3", {"items": [1, 2, 3]}),
        ("self.items.isSorted()", {"items": [1, 2, 2]}),
        ("self.text.indexOf('b') == 1", {"text": "abc"}),
        ("self.text == 'call(me)'", {"text": "call(me)"}),
        ("self.__namespace__ == 'a'", {"namespace": "a"}),
    ],
)
def test_rules_that_hold_say_nothing(rule: str, value: Any) -> None:
    assert said(rule, value) == []


def test_a_broken_rule_says_its_message() -> None:
    assert said("self.a > 1", {"a": 1}, message="a is small") == [("a is small", False)]


def test_a_broken_rule_without_a_message_is_shown() -> None:
    ((text, note),) = said("self.items.isSorted()", {"items": [2, 1]})
    assert "self.items.isSorted()" in text
    assert not note


def test_a_rule_that_fails_to_evaluate_is_an_error() -> None:
    ((text, note),) = said("self.absent == 1", {"a": 1})
    assert "cannot be evaluated" in text
    assert not note


def test_a_transition_rule_is_named_as_not_checked() -> None:
    ((text, note),) = said("self.a == oldSelf.a", {"a": 1})
    assert "transition rule not checked: self.a == oldSelf.a" in text
    assert note


def test_a_rule_with_an_unknown_function_is_named_as_not_checked() -> None:
    ((text, note),) = said("isURL(self.a) && url(self.a).getHost() != ''", {"a": "x"})
    assert "no getHost, isURL, url here" in text
    assert note


def test_a_rule_that_compares_values_of_two_types_is_named_as_not_checked() -> None:
    ((text, note),) = said("self.port != 0", {"port": "web"})
    assert "rule not checked, celpy has no overload: self.port != 0" in text
    assert note


def test_rules_of_items_are_asked_of_each_item() -> None:
    item = {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0"}]}
    schema = {"properties": {"a": {"type": "array", "items": item}}}
    found = [finding.where for finding in check_rules({"a": [1, 0, -1]}, schema, "it")]
    assert found == ["it a[1]", "it a[2]"]
