"""Cuts arrays down to the shapes that Pax's metadata says they have.

A training on a mesh pads axes that its devices do not divide, and stores the padding. From version
1.1 on, the file `metadata/metadata` beside `state` has the true shape of every variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorstore as ts

from model_server.checkpoints.json_file import MOST_JSON, parse_json
from model_server.checkpoints.orbax.dialect import Shape
from model_server.checkpoints.orbax.layout import OrbaxLayout
from sax.errors import CheckpointError

_FILE = "metadata"  # in a folder of this name
_DEEPEST = 64


def without_padding(layout: OrbaxLayout, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays without padding. Raises CheckpointError for shapes larger than stored."""
    shapes = _true_shapes(layout)
    return {path: _cut(path, array, shapes.get(path)) for path, array in arrays.items()}


def _cut(path: str, array: Any, shape: Shape | None) -> Any:
    stored = tuple(array.shape)
    if shape is None or shape == stored or not isinstance(array, ts.TensorStore):
        return array
    if len(shape) != len(stored) or any(a > b for a, b in zip(shape, stored, strict=True)):
        raise CheckpointError(
            f"variable {path.replace('/', '.')} is stored as {list(stored)}, but Pax's metadata "
            f"says {list(shape)}"
        )
    return array[tuple(slice(0, size) for size in shape)]


def _true_shapes(layout: OrbaxLayout) -> dict[str, Shape]:
    for folder in layout.beside:
        place = folder.child(_FILE)
        body = place.read(_FILE, MOST_JSON)
        if body is None:
            continue
        try:
            told = parse_json(body.decode())
        except (ValueError, RecursionError) as exc:
            raise CheckpointError(f"{place.url}/{_FILE} is not JSON: {exc}") from exc
        tree = told.get("train_state_metadata") if isinstance(told, dict) else None
        return dict(_shapes(tree, ()))
    return {}


def _shapes(tree: Any, keys: tuple[str, ...]) -> Iterator[tuple[str, Shape]]:
    if not isinstance(tree, dict) or len(keys) > _DEEPEST:
        return
    shape = tree.get("unpadded_shape")
    if tree.get("_array_metadata_tag") and isinstance(shape, list):
        if all(type(size) is int and size >= 0 for size in shape):
            yield "/".join(keys), tuple(shape)
        return
    for key, inner in tree.items():
        yield from _shapes(inner, (*keys, *str(key).split(".")))
