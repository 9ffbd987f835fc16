"""Fields of Kubernetes objects as plain values: what is absent or of another type is empty. Pure.

An object comes from elsewhere, and no look at one may fail for what is not in it.
"""

from __future__ import annotations

from typing import Any, cast

Object = dict[str, Any]


def part(thing: Object, *path: str) -> Object:
    """The object at a path, {} if there is none."""
    found = _at(thing, path)
    return cast("Object", found) if isinstance(found, dict) else {}


def parts(thing: Object, *path: str) -> list[Object]:
    """The objects in a list at a path."""
    found = _at(thing, path)
    many = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Object", each) for each in many if isinstance(each, dict)]


def text(thing: Object, *path: str) -> str:
    """The word at a path; numbers as they are written."""
    found = _at(thing, path)
    return str(found) if isinstance(found, str | int | float) else ""


def number(thing: Object, *path: str) -> int:
    """The whole number at a path, 0 if there is none."""
    found = text(thing, *path)
    return int(found) if found.lstrip("-").isdecimal() else 0


def is_set(thing: Object, *path: str) -> bool:
    """Whether there is anything at a path, and not false."""
    return bool(_at(thing, path))


def name_of(thing: Object) -> str:
    return text(thing, "metadata", "name")


def label(thing: Object, key: str) -> str:
    return text(thing, "metadata", "labels", key)


def condition(thing: Object, kind: str) -> Object:
    """A condition of its status, {} if it was never set."""
    found = parts(thing, "status", "conditions")
    none: Object = {}
    return next((each for each in found if text(each, "type") == kind), none)


def holds(thing: Object, kind: str) -> bool:
    """Whether a condition is true."""
    return text(condition(thing, kind), "status") == "True"


def _at(thing: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if not isinstance(thing, dict):
            return None
        thing = cast("Object", thing).get(step)
    return thing
