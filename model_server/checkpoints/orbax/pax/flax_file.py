"""Opens the one file that flax serialises a whole tree to, as arrays that are read in parts.

The file is mapped into memory, so that only the pages of a region are read. Flax cuts arrays of
more than a gigabyte into pieces. Nothing is unpickled: flax writes msgpack.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from model_server.checkpoints.files import open_regular
from model_server.checkpoints.orbax.folder import Folder
from model_server.checkpoints.orbax.pax.msgpack_index import BadMsgpack, Bytes, Value, index
from sax.errors import CheckpointError

# Reads the structure of a tree from the text that jax prints for it.
#
# Pax's flax checkpoints hold the leaves of a train state in order, and this text says where they
# belong: `PyTreeDef(CustomNode(TrainState[()], [*, {'params': {'lm': {'softmax': {'w': *}}}},
# []]))`.

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


# An array in a file that is mapped into memory, with the part of tensorstore's interface in use.
#
# Tensorstore itself takes only aligned numbers, and msgpack packs them anywhere. Reading a part
# touches only the pages that it lies on.

Index = int | slice

_AT_ONCE = 1 << 24  # numbers of an array in pieces that are joined together


@dataclass(frozen=True, slots=True)
class MappedArray:
    """Numbers in a row, in one piece or several, as an array of `shape`."""

    shape: tuple[int, ...]
    pieces: Sequence[np.ndarray]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.pieces[0].dtype

    def __getitem__(self, index: Index | tuple[Index, ...]) -> MappedPart:
        return MappedPart(self, index if isinstance(index, tuple) else (index,))

    def read(self) -> Future[np.ndarray]:
        return self[()].read()

    def part(self, index: tuple[Index, ...]) -> np.ndarray:
        """Return a copy of the numbers at an index of whole numbers and slices without steps."""
        if len(self.pieces) == 1:
            return self.pieces[0].reshape(self.shape)[index].copy()
        first, *rest = (*index, *(slice(None) for _ in self.shape[len(index) :]))
        whole = first if isinstance(first, slice) else slice(first, first + 1)
        start, stop, _ = whole.indices(self.shape[0])
        blocks = [block[(slice(None), *rest)] for block in self._rows(start, stop)]
        made = np.concatenate(blocks)
        return made if isinstance(first, slice) else made[0]

    def _rows(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yield the rows of the first dimension from start to stop, some at a time."""
        row = math.prod(self.shape[1:])
        step = max(_AT_ONCE // max(row, 1), 1)
        for first in range(start, max(stop, start + 1), step):
            last = min(first + step, stop)
            numbers = self._joined(first * row, last * row)
            yield numbers.reshape(max(last - first, 0), *self.shape[1:])

    def _joined(self, start: int, stop: int) -> np.ndarray:
        found, begin = [self.pieces[0][:0]], 0
        for piece in self.pieces:
            found.append(piece[max(start - begin, 0) : max(stop - begin, 0)])
            begin += len(piece)
        return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class MappedPart:
    """A part of an array, before it is read."""

    array: MappedArray
    index: tuple[Index, ...]

    def read(self) -> Future[np.ndarray]:
        future: Future[np.ndarray] = Future()
        future.set_result(self.array.part(self.index))
        return future


_ARRAY, _SCALAR = 1, 3  # flax's extension types
_CHUNKED = "__msgpack_chunked_array__"
_FLAT, _STRUCTURE = "flattened_state", "str_pytree_state"  # of Pax: leaves, and where they belong
_NUMBERS = ("float", "int", "uint", "bool")
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array, or one piece of it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int  # byte


@dataclass(frozen=True, slots=True)
class FlaxTree:
    """The arrays of one file, by path."""

    folder: Folder
    name: str
    data: mmap.mmap
    stored: Mapping[str, tuple[tuple[int, ...], list[_Stored]]]  # path -> whole shape, pieces

    @property
    def paths(self) -> Iterable[str]:
        return self.stored

    def open(self, paths: Iterable[str]) -> dict[str, Any]:
        """Open arrays for reading, by path."""
        return {path: _opened(self.data, *self.stored[path]) for path in paths}


def read_flax_tree(folder: Folder, name: str) -> FlaxTree:
    """Read the structure of a file on this machine. Raises CheckpointError, naming it."""
    path = folder.path / name
    try:
        data = _mapped(path)
        return FlaxTree(folder, name, data, _arrays(memoryview(data)))
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except (BadMsgpack, BadTree) as exc:
        raise CheckpointError(f"{path} is not what flax writes: {exc}") from exc


def _mapped(path: Path) -> mmap.mmap:
    descriptor = open_regular(path)
    try:
        if not os.fstat(descriptor).st_size:
            raise BadMsgpack("it is empty")
        return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


def _arrays(data: memoryview) -> dict[str, tuple[tuple[int, ...], list[_Stored]]]:
    tree = index(data)
    if isinstance(tree, dict) and tree.keys() == {_FLAT, _STRUCTURE}:
        tree = _unflattened(tree)
    return dict(_leaves(data, tree, ()))


def _unflattened(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Put the leaves of a train state back under their paths."""
    leaves, text = tree[_FLAT], tree[_STRUCTURE]
    paths = leaf_paths(text if isinstance(text, str) else "")
    if not isinstance(leaves, dict) or len(leaves) != len(paths):
        raise BadTree(f"its structure has {len(paths)} leaves, but it does not hold as many")
    return {path: leaves.get(str(number)) for number, path in enumerate(paths)}


def _leaves(
    data: memoryview, value: Value, keys: tuple[str, ...]
) -> Iterator[tuple[str, tuple[tuple[int, ...], list[_Stored]]]]:
    """Yield the arrays; numbers and texts between them are passed over."""
    path = "/".join(keys)
    if isinstance(value, Bytes) and value.code in (_ARRAY, _SCALAR):
        piece = _stored(data, value, path)
        yield path, (piece.shape, [piece])
    elif isinstance(value, dict) and _CHUNKED in value:
        yield path, _pieces(data, value, path)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(data, inner, (*keys, key.replace(".", "/")))


def _pieces(
    data: memoryview, value: Mapping[str, Any], path: str
) -> tuple[tuple[int, ...], list[_Stored]]:
    shape = _shape(_in_order(value.get("shape")), path)
    chunks = _in_order(value.get("chunks"))
    pieces = [_stored(data, chunk, path) for chunk in chunks]
    if not pieces or len({piece.dtype for piece in pieces}) != 1:
        raise BadMsgpack(f"the pieces of {path} do not have one number format")
    if sum(math.prod(piece.shape) for piece in pieces) != math.prod(shape):
        raise BadMsgpack(f"the pieces of {path} do not make up an array of {list(shape)}")
    return shape, pieces


def _in_order(numbered: Any) -> list[Any]:
    """Return what flax stores in place of a list: {"0": ..., "1": ...}."""
    if isinstance(numbered, list):
        return numbered
    if not isinstance(numbered, dict) or set(numbered) != set(map(str, range(len(numbered)))):
        raise BadMsgpack("a list in it is not numbered from 0 on")
    return [numbered[str(number)] for number in range(len(numbered))]


def _stored(data: memoryview, value: Any, path: str) -> _Stored:
    """Read an array's header: (shape, number format, bytes), packed once more."""
    if not isinstance(value, Bytes):
        raise BadMsgpack(f"{path} has pieces that are no arrays")
    inner = index(data, value.start, value.start + value.size)
    match inner:
        case [list(shape), str(kind), Bytes(start=start, size=size)]:
            dtype, whole = _dtype(kind, path), _shape(shape, path)
            if math.prod(whole) * dtype.itemsize != size:
                raise BadMsgpack(f"{path} has {size} bytes, not those of {list(whole)} {kind}")
            return _Stored(whole, dtype, start)
        case _:
            raise BadMsgpack(f"{path} is no array as flax packs it")


def _shape(sizes: list[Any], path: str) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in sizes) or (math.prod(sizes) > _LARGEST):
        raise BadMsgpack(f"{path} has no sensible shape")
    return tuple(sizes)


def _dtype(kind: str, path: str) -> np.dtype[Any]:
    if kind == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    if not kind.startswith(_NUMBERS):
        raise BadMsgpack(f"{path} holds {kind[:40]!r}, which are no numbers")
    try:
        return np.dtype(kind)
    except TypeError as exc:
        raise BadMsgpack(f"{path} has an unknown number format, {kind[:40]!r}") from exc


def _opened(data: mmap.mmap, shape: tuple[int, ...], pieces: list[_Stored]) -> MappedArray:
    return MappedArray(
        shape,
        [np.frombuffer(data, p.dtype, math.prod(p.shape), p.start) for p in pieces],
    )
