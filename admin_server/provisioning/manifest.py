"""Access to parts of a manifest; missing parts are empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

Body = Mapping[str, Any]


def part(body: Body, name: str) -> dict[str, Any]:
    """The mapping of this name. Raises TypeError for anything else."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {str(value)[:40]!r}, not a mapping")
    return cast("dict[str, Any]", value)


def parts(body: Body, name: str) -> list[dict[str, Any]]:
    """The list of mappings of this name. Raises TypeError for anything else."""
    return cast("list[dict[str, Any]]", _list(body, name, dict, "mappings"))


def words(body: Body, name: str) -> list[str]:
    """The list of strings of this name. Raises TypeError for anything else."""
    return cast("list[str]", _list(body, name, str, "words"))


def _list(body: Body, name: str, kind: type, called: str) -> list[Any]:
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(
        isinstance(each, kind) for each in cast("list[Any]", value)
    ):
        raise TypeError(f"{name} is {str(cast('Any', value))[:40]!r}, not a list of {called}")
    return cast("list[Any]", value)


def annotations_of(body: Body) -> dict[str, str]:
    return {name: str(text) for name, text in part(part(body, "metadata"), "annotations").items()}


def labels_of(body: Body) -> dict[str, str]:
    return {name: str(text) for name, text in part(part(body, "metadata"), "labels").items()}
