"""Translates the names and layouts in an Orbax tree to Hugging Face's.

A dialect is a table of rules; each has its own module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from model_server.checkpoints.orbax.view import OrbaxView
from sax.errors import CheckpointError

Shape = tuple[int, ...]
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor, or one per layer or expert, inside a stored array."""

    name: str  # Hugging Face name with {layer} and {expert} as placeholders
    dims: tuple[tuple[int, ...], ...]  # per dimension the stored axes merged into it
    take: tuple[tuple[int, int], ...] = ()  # axis, index: fixes the axis at that index
    each: tuple[tuple[str, int], ...] = ()  # placeholder, axis: one tensor for every index
    rows: int | None = None  # OrbaxView.rows
    scale: float = 1.0
    offset: float = 0.0  # OrbaxView.offset
    paired: bool = False  # OrbaxView.paired

    @property
    def rank(self) -> int:
        """The number of axes that the stored array must have."""
        return sum(map(len, self.dims)) + len(self.take) + len(self.each)


@dataclass(frozen=True, slots=True)
class Rule:
    """The parts of arrays whose whole path matches; the pattern's groups go into the names."""

    pattern: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names and layouts that one training program uses for its weights."""

    name: str
    mark: str  # matches some path in every checkpoint of this dialect, and none in others
    rules: Callable[[Config, Mapping[str, Shape]], tuple[Rule, ...]]
    ignored: tuple[str, ...] = ()  # patterns of arrays that are not part of the language model


def find_dialect(dialects: Iterable[Dialect], paths: Iterable[str]) -> Dialect | None:
    """Return the first dialect whose mark matches a path; None if there is none."""
    known = list(paths)
    for dialect in dialects:
        mark = re.compile(dialect.mark)
        if any(mark.fullmatch(path) for path in known):
            return dialect
    return None


def translate(
    dialect: Dialect, config: Config, shapes: Mapping[str, Shape]
) -> dict[str, OrbaxView]:
    """Return views by Hugging Face name; an array without a rule keeps its path as its name.

    Raises CheckpointError if an array has a different number of axes than its rule.
    """
    rules = [(re.compile(rule.pattern), rule) for rule in dialect.rules(config, shapes)]
    ignored = [re.compile(pattern) for pattern in dialect.ignored]
    views: dict[str, OrbaxView] = {}
    for path, shape in shapes.items():
        if any(pattern.fullmatch(path) for pattern in ignored):
            continue
        found = _translated(path, shape, rules)
        views |= {path.replace("/", "."): as_stored(path, shape)} if found is None else found
    return views


def as_stored(path: str, shape: Shape) -> OrbaxView:
    return OrbaxView(path, tuple((axis,) for axis in range(len(shape))))


def _translated(
    path: str, shape: Shape, rules: Iterable[tuple[re.Pattern[str], Rule]]
) -> dict[str, OrbaxView] | None:
    """Return the views of one array; None if no rule is about it."""
    for pattern, rule in rules:
        if match := pattern.fullmatch(path):
            return {
                name: view
                for part in rule.parts
                for name, view in _views(path, shape, part, match.groupdict())
            }
    return None


def _views(
    path: str, shape: Shape, part: Part, groups: Mapping[str, str]
) -> Iterator[tuple[str, OrbaxView]]:
    if part.rank != len(shape):
        raise CheckpointError(f"array {path} is {list(shape)}; it should have {part.rank} axes")
    axes = [axis for _, axis in part.each]
    for indices in product(*(range(shape[axis]) for axis in axes)):
        words = dict(zip((word for word, _ in part.each), map(str, indices), strict=True))
        taken = (*part.take, *zip(axes, indices, strict=True))
        view = OrbaxView(
            path, part.dims, taken, part.rows, part.scale, part.offset, paired=part.paired
        )
        yield _filled(part.name, {**groups, **words}), view


def _filled(name: str, words: Mapping[str, str]) -> str:
    """Fill in placeholders without str.format: both texts come from a file and may hold braces."""
    for word, text in words.items():
        name = name.replace(f"{{{word}}}", text.replace("/", "."))
    return name


def _exact(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    return ()


def _flax(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    return (
        Rule(r"(?P<stem>.+)/kernel", (Part("{stem}.weight", ((1,), (0,))),)),
        Rule(r"(?P<stem>.+)/embedding", (Part("{stem}.weight", ((0,), (1,))),)),
        Rule(r"(?P<stem>.+)/scale", (Part("{stem}.weight", ((0,),)),)),
    )


# The second mark is that of Praxis' models, which Hugging Face does not have, under our names.
EXACT = Dialect("Hugging Face names", r".+/weight|embedding/table", _exact)
FLAX = Dialect("transformers' Flax models", r"(?:.+/)?embedding", _flax)
