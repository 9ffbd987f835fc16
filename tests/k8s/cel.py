"""The rules of CRDs (`x-kubernetes-validations`), evaluated with celpy.

Transition rules compare with the object as it was; there is none here, and a note says so. A rule
that calls a function which neither celpy nor this file has is named in a note, never passed over.
Pure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError, base_functions

from tests.k8s.finding import Finding
from tests.k8s.structural import Schema, nodes

_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_MACROS = {"has", "all", "exists", "exists_one", "map", "filter"}
_OPERATORS = {"in"}
# Names that CEL keeps for itself are escaped where a rule uses them as fields.
_RESERVED = re.compile(
    "true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|"
    "namespace|return|var|void|while"
)


def check_rules(value: Any, schema: Schema, title: str) -> Iterator[Finding]:
    """Every rule at every value that it is written for."""
    for each, own, path in nodes(value, schema, ""):
        for rule in own.get("x-kubernetes-validations", ()):
            where = f"{title} {path.lstrip('.')}".rstrip()
            if finding := _check(each, rule, where):
                yield finding


def _check(value: Any, rule: Mapping[str, Any], where: str) -> Finding | None:
    text = rule["rule"]
    bare = _STRING.sub("''", text)
    if re.search(r"\boldSelf\b", bare):
        return Finding(where, f"transition rule not checked: {text}", note=True)
    missing = set(_CALL.findall(bare)) - _MACROS - _OPERATORS - _known()
    if missing:
        named = ", ".join(sorted(missing))
        return Finding(where, f"rule not checked, no {named} here: {text}", note=True)
    try:
        passed = _program(text).evaluate({"self": json_to_cel(_escaped(value))})
    except CELEvalError as problem:
        if "no matching overload" in str(problem.args[0]):  # of dynamic values, where CEL has one
            return Finding(where, f"rule not checked, celpy has no overload: {text}", note=True)
        return Finding(where, f"rule {text!r} cannot be evaluated: {problem.args[0]}")
    if passed:
        return None
    return Finding(where, rule.get("message") or f"the rule {text!r} is broken")


@functools.cache
def _program(text: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(text), functions=FUNCTIONS)


@functools.cache
def _known() -> frozenset[str]:
    named = {name for name in base_functions if name[0].isalpha()}
    return frozenset(named | set(FUNCTIONS))


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_field(key): _escaped(each) for key, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, list) else value


def _field(name: str) -> str:
    return f"__{name}__" if _RESERVED.fullmatch(name) else name


def _text(function: Callable[..., str]) -> Callable[..., Any]:
    return lambda *given: celtypes.StringType(function(*given))


def _whole(function: Callable[..., int]) -> Callable[..., Any]:
    return lambda *given: celtypes.IntType(function(*given))


def _split(text: str, by: str, most: int = -1) -> Any:
    return celtypes.ListType([celtypes.StringType(each) for each in text.split(by, most)])


def _is_sorted(items: list[Any]) -> Any:
    pairs = zip(items, items[1:], strict=False)
    return celtypes.BoolType(all(not bool(after < before) for before, after in pairs))


# Of the library that Kubernetes adds to CEL, what can be said in a line.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lowerAscii": _text(lambda text: text.lower()),
    "upperAscii": _text(lambda text: text.upper()),
    "trim": _text(lambda text: text.strip()),
    "replace": _text(lambda text, old, new, most=-1: text.replace(old, new, most)),
    "substring": _text(lambda text, begin, end=None: text[begin:end]),
    "charAt": _text(lambda text, at: text[at : at + 1]),
    "join": _text(lambda items, by="": by.join(items)),
    "split": _split,
    "indexOf": _whole(lambda items, wanted: items.find(wanted)),
    "lastIndexOf": _whole(lambda items, wanted: items.rfind(wanted)),
    "isSorted": _is_sorted,
    "sum": lambda items: functools.reduce(lambda one, other: one + other, items),
    "min": lambda items: min(items),
    "max": lambda items: max(items),
}
