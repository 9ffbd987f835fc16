"""Writes Pax checkpoints as Pax does: arrays in files of their own, one database, or one flax file.

The zarr files are written by hand (JSON and gzip), the database by Orbax, the file by flax: nothing
of the reader's.
"""

from __future__ import annotations

import gzip
import itertools
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import flax.serialization
import flax.struct
import jax
import msgpack
import numpy as np
import orbax.checkpoint as ocp

Variables = Mapping[str, np.ndarray]
STEP = "checkpoint_00000007"


class TrainState(flax.struct.PyTreeNode):
    """The tree that Pax saves: fields in its order."""

    step: Any
    mdl_vars: Any
    opt_states: Any
    extra_state: Any = ()


def train_state(variables: Variables) -> TrainState:
    """The variables of a model, below `params.lm`, with an optimizer's state."""
    model = _nested(variables)
    moments = {"no_prefix": ({"count": np.int32(7)}, {"m": np.ones((2, 3), np.float32)})}
    return TrainState(np.int32(7), {"params": {"lm": model}}, [moments])


def write_arrays(
    folder: Path, variables: Variables, *, item: str | None = "state", padding: int = 0
) -> Path:
    """Write a folder per array, in chunks; `item`: below the step, None as before 2023.

    padding: rows and columns of garbage at the end of every axis, as uneven meshes leave them.
    """
    step = folder / STEP
    state = step / item if item else step
    for path, values in variables.items():
        padded = np.pad(values, padding, constant_values=9)[(slice(padding, None),) * values.ndim]
        write_zarr(state / f"mdl_vars.params.lm.{path}", padded if padding else values)
    write_zarr(state / "step", np.asarray(7, np.int32))
    write_zarr(state / "opt_states_0.no_prefix_0.m.lm.w", np.ones((2, 3), np.float32))
    if item:
        (step / "metadata").mkdir()
        told = {"version": 1.1, "train_state_metadata": _metadata(variables)}
        (step / "metadata" / "metadata").write_text(json.dumps(told))
    return step


def _metadata(variables: Variables) -> dict[str, Any]:
    """The true shapes, as Pax writes them from version 1.1 on."""
    described = {
        path: {
            "_array_metadata_tag": True,
            "is_optax_masked_node": False,
            "unpadded_shape": values.shape,
            "dtype": values.dtype.name,
        }
        for path, values in variables.items()
    }
    return {"mdl_vars": {"params": {"lm": _nested(described)}}}


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *heads, leaf = path.split(".")
        node = tree
        for head in heads:
            node = node.setdefault(head, {})
        node[leaf] = value
    return tree


def write_zarr(folder: Path, values: np.ndarray) -> None:
    """Write one array in zarr's second format, each axis cut in two, compressed by gzip."""
    folder.mkdir(parents=True)
    chunks = [max(-(-size // 2), 1) for size in values.shape]
    bfloat16 = values.dtype.name == "bfloat16"
    description = {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": chunks,
        "dtype": "bfloat16" if bfloat16 else values.dtype.newbyteorder("<").str,
        "compressor": {"id": "gzip", "level": 1},
        "fill_value": None,
        "filters": None,
        "order": "C",
        "dimension_separator": ".",
    }
    (folder / ".zarray").write_text(json.dumps(description))
    counts = [-(-size // chunk) for size, chunk in zip(values.shape, chunks, strict=True)]
    for at in itertools.product(*map(range, counts)):
        body = np.zeros(chunks, values.dtype)
        cut = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, chunks, strict=True))]
        body[tuple(slice(size) for size in cut.shape)] = cut
        (folder / (".".join(map(str, at)) or "0")).write_bytes(gzip.compress(body.tobytes()))


def write_database(folder: Path, variables: Variables) -> Path:
    """Write with Orbax: one OCDBT database with its metadata."""
    step = folder / STEP
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True)
        with ocp.Checkpointer(handler) as checkpointer:
            checkpointer.save((step / "state").absolute(), train_state(variables))
    return step


def write_flax_tree(folder: Path, variables: Variables) -> Path:
    """Write the tree into one file, as flax does."""
    step = folder / "checkpoint_7"
    step.mkdir(parents=True)
    (step / "checkpoint").write_bytes(flax.serialization.to_bytes(train_state(variables)))
    return step


def write_flax_leaves(folder: Path, variables: Variables) -> Path:
    """Write the leaves and the text of their structure into one file, as Pax's handler does."""
    step = folder / "checkpoint_7"
    (step / "state").mkdir(parents=True)
    leaves, structure = jax.tree_util.tree_flatten(train_state(variables))
    content = {"flattened_state": leaves, "str_pytree_state": str(structure)}
    (step / "state" / "checkpoint").write_bytes(flax.serialization.to_bytes(content))
    return step


def packed(value: Any) -> bytes:
    """The value as msgpack packs it."""
    return cast(bytes, msgpack.packb(value))


WRITERS = {
    "arrays": write_arrays,
    "database": write_database,
    "flax tree": write_flax_tree,
    "flax leaves": write_flax_leaves,
}
