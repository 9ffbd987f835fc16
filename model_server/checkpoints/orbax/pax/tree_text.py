"""Reads the structure of a tree from the text that jax prints for it.

Pax's flax checkpoints hold the leaves of a train state in order, and this text says where they
belong: `PyTreeDef(CustomNode(TrainState[()], [*, {'params': {'lm': {'softmax': {'w': *}}}}, []]))`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"\s*(?:(?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<word>[A-Za-z_][\w.]*)|(?P<sign>.))",
    re.DOTALL,
)
_TRAIN_STATE = ("step", "mdl_vars", "opt_states", "extra_state")
_DEEPEST = 64
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class BadTree(ValueError):
    """The text describes no tree that is known, or not that of the leaves beside it."""


def leaf_paths(text: str) -> list[str]:
    """Return the path of every leaf, in order: keys, and numbers in lists. Raises BadTree."""
    tokens = _TreeTokens(list(_TOKEN.finditer(text.strip())))
    paths = list(_node(tokens, (), 0))
    if tokens.left:
        raise BadTree(f"its structure goes on after its end: {tokens.word()[:40]!r}")
    return paths


@dataclass(slots=True)
class _TreeTokens:
    matches: Sequence[re.Match[str]]
    at: int = 0

    @property
    def left(self) -> bool:
        return self.at < len(self.matches)

    def word(self) -> str:
        """Return the next token without taking it."""
        if not self.left:
            raise BadTree("its structure ends too early")
        return self.matches[self.at][0].strip()

    def take(self, *wanted: str) -> str:
        """Take the next token, which is one of `wanted` unless there are none."""
        word = self.word()
        if wanted and word not in wanted:
            raise BadTree(
                f"its structure has {word[:40]!r} where {' or '.join(wanted)} is expected"
            )
        self.at += 1
        return word


def _node(tokens: _TreeTokens, keys: tuple[str, ...], depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise BadTree(f"its structure has more than {_DEEPEST} levels")
    word = tokens.take()
    if word == "*":
        yield "/".join(keys)
    elif word == "{":
        yield from _mapping(tokens, keys, depth)
    elif word in ("[", "("):
        yield from _sequence(tokens, word, keys, depth)
    elif word in ("PyTreeDef", "CustomNode"):
        tokens.take("(")
        names = None if word == "PyTreeDef" else _names(tokens)
        yield from _inner(tokens, names, keys, depth + 1)
        tokens.take(")")
    elif word != "None":
        raise BadTree(f"its structure has {word[:40]!r}, which is unknown")


def _mapping(tokens: _TreeTokens, keys: tuple[str, ...], depth: int) -> Iterator[str]:
    while tokens.word() != "}":
        key = tokens.take()
        tokens.take(":")
        yield from _node(tokens, (*keys, key.strip("'\"")), depth + 1)
        if tokens.word() != "}":
            tokens.take(",")
    tokens.take("}")


def _sequence(
    tokens: _TreeTokens, opening: str, keys: tuple[str, ...], depth: int, names: Sequence[str] = ()
) -> Iterator[str]:
    number, closing = 0, _CLOSING[opening]
    while tokens.word() != closing:
        name = names[number] if number < len(names) else str(number)
        yield from _node(tokens, (*keys, name), depth + 1)
        number += 1
        if tokens.word() != closing:
            tokens.take(",")
    tokens.take(closing)


def _inner(
    tokens: _TreeTokens, names: Sequence[str] | None, keys: tuple[str, ...], depth: int
) -> Iterator[str]:
    if names is None:
        yield from _node(tokens, keys, depth)
        return
    tokens.take(",")
    yield from _sequence(tokens, tokens.take("["), keys, depth, names)


def _names(tokens: _TreeTokens) -> Sequence[str]:
    """Take a class with its auxiliary data; return the names of its children."""
    known = tokens.take()
    tokens.take("[")
    quoted = [word[1:-1] for word in _up_to_closing(tokens) if word[0] in "'\""]
    return _TRAIN_STATE if known.rpartition(".")[2] == "TrainState" else quoted


def _up_to_closing(tokens: _TreeTokens) -> Iterator[str]:
    """Take everything up to the bracket that closes the one before."""
    depth = 1
    while True:
        word = tokens.take()
        depth += (word in _CLOSING) - (word in _CLOSING.values())
        if not depth:
            return
        yield word
