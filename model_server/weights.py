"""Filling declarations with numbers: from a checkpoint, tensor by tensor, or at random.

Every device gets its own region of a weight and no more is read than the devices of this process
hold. Peak host memory is the placed weights and the few weights that are on their way.
"""

from __future__ import annotations

import contextvars
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from model_server.aligned import aligned
from model_server.checkpoints.bare_names import with_whole_names
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.region import Region, explicit
from model_server.models.drawing import Rows, rows_of
from model_server.models.sharding import make_mesh, sharding_of
from model_server.models.weight import Declaration, Leaf
from model_server.packed_reader import PackedReader
from sax.errors import CheckpointError
from sax.types import Progress

# Tensors that old exporters wrote although they follow from the configuration.
_DERIVED = ("rotary_emb.inv_freq", ".masked_bias", "attn.bias", "attention.bias")
_AHEAD = 2  # weights on their way at once: one is read while another is placed

Report = Callable[[Progress], None]
Together = Callable[[Sequence[Declaration]], bool]  # may these be on their way at once?


def read_weights(
    declared: Sequence[Declaration],
    checkpoint: Checkpoint,
    report: Report,
    mesh: Mesh | None = None,
) -> list[jax.Array]:
    """Every declared weight from a checkpoint, placed on the devices of the mesh.

    Raises CheckpointError for a missing, misshapen or unknown tensor, by its name.
    """
    if found := next(mismatches(declared, checkpoint), None):
        raise CheckpointError(found)
    checkpoint = with_whole_names(checkpoint, _names(declared))
    place = mesh or make_mesh()

    def read_one(weight: Declaration) -> list[jax.Array]:
        read = _reader(weight, checkpoint)
        placed = [_place(leaf, place, functools.partial(read, leaf)) for leaf in weight.leaves]
        return jax.block_until_ready(placed)  # so that what was read is let go of

    order = _file_order(declared, checkpoint)
    placed = _fill(
        [declared[index] for index in order],
        read_one,
        "reading weights",
        report,
        _few_and_small(declared, checkpoint),
    )
    by_weight = dict(zip(order, placed, strict=True))
    return [leaf for index in range(len(declared)) for leaf in by_weight[index]]


def random_weights(
    declared: Sequence[Declaration], seed: int, report: Report, mesh: Mesh | None = None
) -> list[jax.Array]:
    """Every declared weight drawn on the devices: the same for a seed, whatever the mesh."""
    key = jax.random.key(seed)
    place = mesh or make_mesh()

    def draw_one(weight: Declaration) -> list[jax.Array]:
        return [_draw(weight, leaf, key, place) for leaf in weight.leaves]

    drawn = _fill(declared, draw_one, "drawing weights", report, lambda weights: False)
    return [leaf for leaves in drawn for leaf in leaves]


def mismatches(
    declared: Sequence[Declaration], checkpoint: Checkpoint, shown: int = 3
) -> Iterator[str]:
    """Everything about the names and shapes of a checkpoint that keeps it from being loaded.

    Of missing and of unknown tensors `shown` are named, the others counted.
    """
    wanted = _names(declared)
    checkpoint = with_whole_names(checkpoint, wanted)
    there = set(checkpoint.names())
    if missing := sorted(wanted - there):
        yield f"the checkpoint lacks {_some(missing, shown)}"
    # A tied head may be stored as well; it is the embedding again.
    spare = {n for n in there - wanted if not n.endswith(_DERIVED) and n != "lm_head.weight"}
    if spare:
        unused = _some(sorted(spare), shown)
        yield f"the checkpoint has tensors that the model does not use: {unused}"
    for weight in declared:
        if there.issuperset(weight.source.names) and (text := _misshapen(weight, checkpoint)):
            yield text


def _names(declared: Sequence[Declaration]) -> set[str]:
    return {name for weight in declared for name in weight.source.names}


def _misshapen(weight: Declaration, checkpoint: Checkpoint) -> str | None:
    try:
        shape = weight.source.shape(checkpoint)
    except CheckpointError as exc:
        return exc.text
    if shape == weight.shape:
        return None
    names = tuple(dict.fromkeys(weight.source.names))
    given = ", ".join(f"{name} is {list(checkpoint.shape(name))}" for name in names[:3])
    more = f" (and {len(names) - 3} more)" if len(names) > 3 else ""
    together = f", together {list(shape)}" if len(names) > 1 else ""
    return f"{given}{more}{together}; the configuration says {list(weight.shape)}"


def _some(names: list[str], shown: int) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest


def _file_order(declared: Sequence[Declaration], checkpoint: Checkpoint) -> list[int]:
    """Indices of the weights: disks are faster when they are read from front to back."""
    position = {name: number for number, name in enumerate(checkpoint.names())}

    def begins(index: int) -> int:
        return min((position[name] for name in declared[index].source.names), default=0)

    return sorted(range(len(declared)), key=begins)


def _few_and_small(declared: Sequence[Declaration], checkpoint: Checkpoint) -> Together:
    """Two weights, if they take no more beside themselves than twice the largest tensor does."""

    def read(weight: Declaration) -> int:
        return max((checkpoint.nbytes(name) for name in weight.source.names), default=0)

    def beside(weight: Declaration) -> int:
        """A tensor as it is read; and int4 is a byte a number until the device has packed it."""
        return read(weight) + sum(leaf.bytes for leaf in weight.leaves if leaf.bits < 8)

    limit = 2 * max(map(read, declared), default=0)
    return lambda weights: len(weights) <= _AHEAD and sum(map(beside, weights)) <= limit


def _fill(
    declared: Sequence[Declaration],
    make: Callable[[Declaration], list[jax.Array]],
    phase: str,
    report: Report,
    together: Together,
) -> list[list[jax.Array]]:
    """The arrays of each weight."""
    total = sum(weight.bytes for weight in declared)
    placed: list[list[jax.Array]] = []
    done = 0
    coming: deque[Future[list[jax.Array]]] = deque()
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="weights") as pool:
        try:
            for index, waited in enumerate(declared):
                for weight in _starting(declared[index:], len(coming), together):
                    context = contextvars.copy_context()  # says that compiling is expected here
                    coming.append(pool.submit(context.run, make, weight))
                report(Progress(phase, done, total, "bytes"))
                placed.append(coming.popleft().result())
                done += waited.bytes
        finally:
            pool.shutdown(cancel_futures=True)
    report(Progress(phase, total, total, "bytes"))
    return placed


def _starting(
    left: Sequence[Declaration], started: int, together: Together
) -> Iterator[Declaration]:
    """The weights to begin with now; `started` of those that are left are on their way."""
    for count in range(started, len(left)):
        if count and not together(left[: count + 1]):
            return
        yield left[count]


def _reader(weight: Declaration, checkpoint: Checkpoint) -> Callable[[Leaf, Region], np.ndarray]:
    """Reads a region of one of the weight's arrays."""
    if weight.packing is not None:
        return PackedReader(weight, weight.packing, checkpoint).read
    return lambda leaf, region: weight.source.read(checkpoint, region, leaf.dtype)


def _place(leaf: Leaf, mesh: Mesh, read: Callable[[Region], np.ndarray]) -> jax.Array:
    """An array whose every region is read once, however many devices hold it."""
    sharding = sharding_of(leaf.shape, leaf.axes, mesh)
    holders: dict[tuple[tuple[int, int], ...], list[Any]] = {}  # bounds -> devices
    for device, index in sharding.addressable_devices_indices_map(leaf.shape).items():
        bounds = tuple((part.start, part.stop) for part in explicit(index or (), leaf.shape))
        holders.setdefault(bounds, []).append(device)
    shards: list[jax.Array] = []
    for bounds, devices in holders.items():
        region = tuple(slice(start, stop) for start, stop in bounds)
        numbers = aligned(read(region), leaf.dtype)
        shards += [jax.device_put(numbers, device) for device in devices]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)


# Standard deviation of the values of random quantised weights: few of them need clipping.
_SPREADS = {"int8": 32.0, "int4": 2.3, "float8_e4m3fn": 1.0}


def _draw(weight: Declaration, leaf: Leaf, key: jax.Array, mesh: Mesh) -> jax.Array:
    sharding = sharding_of(leaf.shape, leaf.axes, mesh)

    def constant(value: float) -> jax.Array:
        return jnp.full(leaf.shape, value, leaf.dtype, device=sharding)

    if not weight.spread:
        return constant(1 if weight.spread is None and leaf.part != "offsets" else 0)
    if leaf.part == "offsets":
        return constant(0)
    spread = weight.spread
    if weight.packing is not None:
        of_values = _SPREADS[weight.packing.kind]
        if leaf.part == "scales":
            return constant(spread / of_values)
        spread = of_values
    rows = rows_of(weight.source, leaf.shape[0], weight.path)
    keys = [jax.random.fold_in(key, part.key) for part in rows]
    alike = tuple(replace(part, key=0) for part in rows)
    return _normal(alike, leaf.shape[1:], leaf.dtype, spread, sharding)(keys)


@functools.cache
def _normal(
    rows: tuple[Rows, ...],
    rest: tuple[int, ...],
    dtype: Any,
    spread: float,
    sharding: NamedSharding,
) -> Callable[[list[jax.Array]], jax.Array]:
    """Draws where it is to lie: no device ever holds the whole of a sharded weight.

    rows: their keys are zero here, so that layers share a program; rest: the other dimensions.
    """

    def draw(keys: list[jax.Array]) -> jax.Array:
        parts = [one(key, part) for key, part in zip(keys, rows, strict=True)]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def one(key: jax.Array, part: Rows) -> jax.Array:
        drawn = numbers(key, (part.count, *rest))
        if part.times == 1:
            return drawn
        groups = drawn.reshape(-1, part.group, *rest)
        return jnp.repeat(groups, part.times, axis=0).reshape(-1, *rest)

    def numbers(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        if not jnp.issubdtype(dtype, jnp.integer):
            drawn = jax.random.normal(key, shape, jnp.bfloat16 if dtype.itemsize == 1 else dtype)
            return (drawn * spread).astype(dtype)
        highest = 7 if dtype == jnp.int4 else 127
        drawn = jnp.round(jax.random.normal(key, shape, jnp.bfloat16) * spread)
        return jnp.clip(drawn, -highest, highest).astype(dtype)

    return jax.jit(draw, out_shardings=sharding)
