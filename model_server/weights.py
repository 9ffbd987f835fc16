"""Filling declarations with numbers: from a checkpoint, tensor by tensor, or at random.

Peak host memory is the placed weights and one tensor.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.models.weight import Declaration
from sax.errors import CheckpointError
from sax.types import Progress

# Tensors that old exporters wrote although they follow from the configuration.
_DERIVED = ("rotary_emb.inv_freq", "masked_bias")


def read_weights(
    declared: Sequence[Declaration], checkpoint: Checkpoint, report: Callable[[Progress], None]
) -> list[jax.Array]:
    """Every declared weight from a checkpoint, placed on the device.

    Raises CheckpointError for a missing, misshapen or unknown tensor, by its name.
    """
    _check_names(declared, checkpoint)
    total = sum(weight.bytes for weight in declared)
    placed: list[jax.Array] = []
    done = 0
    for weight in declared:
        report(Progress("reading weights", done, total, "bytes"))
        placed.append(jax.device_put(_read_one(weight, checkpoint)))
        done += weight.bytes
    report(Progress("reading weights", total, total, "bytes"))
    return placed


def random_weights(
    declared: Sequence[Declaration], seed: int, report: Callable[[Progress], None]
) -> list[jax.Array]:
    """Every declared weight drawn on the device; the same seed gives the same weights."""
    key = jax.random.key(seed)
    total = sum(weight.bytes for weight in declared)
    placed: list[jax.Array] = []
    done = 0
    for weight in declared:
        report(Progress("drawing weights", done, total, "bytes"))
        placed.append(_draw_one(weight, jax.random.fold_in(key, zlib.crc32(weight.path.encode()))))
        done += weight.bytes
    report(Progress("drawing weights", total, total, "bytes"))
    return placed


def _draw_one(weight: Declaration, key: jax.Array) -> jax.Array:
    if weight.spread is None:
        return jnp.ones(weight.shape, weight.dtype)
    if not weight.spread:
        return jnp.zeros(weight.shape, weight.dtype)
    return jax.random.normal(key, weight.shape, weight.dtype) * weight.spread


def _check_names(declared: Sequence[Declaration], checkpoint: Checkpoint) -> None:
    wanted = {name for weight in declared for name in weight.names}
    there = set(checkpoint.names())
    if missing := sorted(wanted - there):
        raise CheckpointError(f"the checkpoint lacks {_some(missing)}")
    # A tied head may be stored as well; it is the embedding again.
    spare = {n for n in there - wanted if not n.endswith(_DERIVED) and n != "lm_head.weight"}
    if spare:
        raise CheckpointError(
            f"the checkpoint has tensors that the model does not use: {_some(sorted(spare))}"
        )


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def _read_one(weight: Declaration, checkpoint: Checkpoint) -> np.ndarray:
    _check_shape(weight, checkpoint)
    joined = np.empty(weight.shape, weight.dtype)
    first = 0
    for name in weight.names:
        part = checkpoint.read(name)
        joined[first : first + len(part)] = part
        first += len(part)
    return joined


def _check_shape(weight: Declaration, checkpoint: Checkpoint) -> None:
    shapes = {name: checkpoint.shape(name) for name in weight.names}
    rows = sum(shape[0] if shape else 1 for shape in shapes.values())
    rest = {shape[1:] for shape in shapes.values()}
    if rows != weight.shape[0] or rest != {weight.shape[1:]}:
        raise CheckpointError(
            f"{', '.join(f'{n} is {list(s)}' for n, s in shapes.items())}, together "
            f"{rows * math.prod(next(iter(rest)))} numbers; the configuration says "
            f"{list(weight.shape)}"
        )
