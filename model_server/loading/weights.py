"""Reads declared weights from a checkpoint, tensor by tensor.

Every device gets its own region of a weight, and only the regions that this process's devices hold
are read. Peak host memory is the placed weights plus the few in flight.

A quantised weight is kept as the checkpoint stores it, or quantised while reading: band by band, so
that the working set stays in a core's cache and the extra memory is that of one part.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

import jax
import numpy as np

from model_server.checkpoints.checkpoint import ARRAYS, Checkpoint
from model_server.checkpoints.checkpoint_view import with_whole_names
from model_server.checkpoints.packed import PackedBlocks, Packing
from model_server.checkpoints.region import Region, explicit, region_shape, whole
from model_server.kernels.aligned import (
    BandMemory,
    WeightMemory,
    aligned,
    aligned_empty,
    uses_host_memory,
)
from model_server.kernels.cpu.tiles import ROWS
from model_server.models.weights.quantization import fits, has_transposed, quantize, refined
from model_server.models.weights.sharding import Layout, own_device
from model_server.models.weights.source import Empty, RegionPiece, WeightSource
from model_server.models.weights.tiled import lay_out
from model_server.models.weights.weight import Declaration, Leaf
from sax.errors import CheckpointError
from sax.types import Progress

T = TypeVar("T")

_QUANTISED_BAND = 64 * 1024  # numbers quantised at once
_ALONE = 32  # fewer bands than this are not worth threads
_THREADS = 8  # more would need more memory for their bands
_PARTS = ("values", "scales", "offsets")


def place(leaf: Leaf, layout: Layout, read: Callable[[Region], np.ndarray]) -> jax.Array:
    """Build an array, reading each region once however many devices hold it."""
    sharding = layout.sharding(leaf.shape, leaf.axes, leaf.bits)
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


def placed(weight: Declaration, layout: Layout, made: Sequence[np.ndarray]) -> list[jax.Array]:
    """Place the whole arrays of a weight's leaves."""
    wholes = zip(weight.leaves, made, strict=True)
    arrays = [place(leaf, layout, array.__getitem__) for leaf, array in wholes]
    return jax.block_until_ready(arrays)


Reader = Callable[[], Callable[[Leaf, Region], np.ndarray]]
_BAND = 2 * 1024 * 1024  # numbers laid out in tiles at once, at least
_MOST_BANDS = 4  # of a weight: some checkpoints decode a whole tensor for each, columns always


def _band_height(weight: Declaration) -> int:
    """Return how many rows to read at once, or how many experts, if it has one matrix of each."""
    *_, outputs, inputs = weight.shape
    if len(weight.shape) == 3:
        return max(_BAND // (outputs * inputs), 1)
    bands = 2 if has_transposed(weight.source) else _MOST_BANDS
    return max(_BAND // max(inputs, 1), outputs // bands) // ROWS * ROWS + ROWS


def _bands(weight: Declaration, starts: Sequence[int]) -> Iterator[slice]:
    """Yield the rows to read at once. starts: rows at which another band begins in any case."""
    height = _band_height(weight)
    for first, stop in itertools.pairwise((*starts, weight.shape[0])):
        for row in range(first, stop, height):
            yield slice(row, min(row + height, stop))


def in_tiles(
    weight: Declaration, reader: Reader, empty: Empty = aligned_empty, starts: Sequence[int] = (0,)
) -> list[np.ndarray]:
    """Read a weight band by band and lay out each in tiles; return the host's array of each leaf.

    reader: makes what reads the leaves as they are stored; it may keep what it has read.
    empty: makes the arrays for the tiles. starts: rows at which another tensor begins.
    """
    rows_of_each = math.prod(weight.shape[1:-1])
    made = {leaf.part: empty(leaf.shape, leaf.dtype) for leaf in weight.leaves}
    for band in _bands(weight, starts):
        first, read = band.start, reader()
        plain = {leaf.part: read(leaf, (band, *whole(leaf.shape[1:]))) for leaf in weight.plain}
        tiles = slice(first * rows_of_each // ROWS, -(-band.stop * rows_of_each // ROWS))
        lay_out(weight.packing, plain, {part: array[tiles] for part, array in made.items()})
        del plain, read  # before the next band is read
    return list(made.values())


AHEAD = 2  # weights in flight: one is read while another is placed

Report = Callable[[Progress], None]
Together = Callable[[Sequence[Declaration]], bool]  # may these be in flight at once?


def fill(
    declared: Sequence[Declaration],
    make: Callable[[Declaration], list[T]],
    phase: str,
    report: Report,
    together: Together | None = None,
) -> list[list[T]]:
    """Make every weight. together: some at once, on threads; None: each in turn, on this thread."""
    total, done = sum(weight.bytes for weight in declared), 0
    filled: list[list[T]] = []
    in_turn = (make(weight) for weight in declared)
    with closing(_ahead(declared, make, together) if together else in_turn) as coming:
        report(Progress(phase, done, total, "bytes"))
        for weight, made in zip(declared, coming, strict=True):
            filled.append(made)
            done += weight.bytes
            report(Progress(phase, done, total, "bytes"))
    return filled


def _ahead(
    declared: Sequence[Declaration], make: Callable[[Declaration], list[T]], together: Together
) -> Generator[list[T]]:
    coming: deque[Future[list[T]]] = deque()
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="weights") as pool:
        try:
            for index in range(len(declared)):
                for weight in _starting(declared[index:], len(coming), together):
                    context = contextvars.copy_context()  # marks compiles as expected
                    coming.append(pool.submit(context.run, make, weight))
                yield coming.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _starting(
    left: Sequence[Declaration], started: int, together: Together
) -> Iterator[Declaration]:
    """Yield the weights to start now; the first `started` of `left` are in flight already."""
    for count in range(started, len(left)):
        if count and not together(left[: count + 1]):
            return
        yield left[count]


def _starts(weight: Declaration, checkpoint: Checkpoint) -> list[int]:
    """Return the rows at which bands begin in any case, if there are some.

    A part of one array of this process is read in place, so bands begin where arrays do, if tiles
    do, too. Rows of a file of plain numbers cost no more in bands that a core's cache holds.
    """
    if len(weight.shape) != 2 or weight.low_rank is not None:
        return [0]
    if checkpoint.format == ARRAYS:
        pieces = weight.source.pieces(checkpoint, whole(weight.shape))
        rows = sorted({0, *(each.place[0].start for each in pieces)})
        return [0] if any(row % ROWS for row in rows) else rows
    plain = checkpoint.format == "safetensors" and checkpoint.folder is None
    if not plain or weight.packing is not None or has_transposed(weight.source):
        return [0]
    return list(range(0, weight.shape[0], max(_BAND // max(weight.shape[1], 1) // ROWS, 1) * ROWS))


# Tensors that old exporters wrote although they can be derived from the configuration.
_DERIVED = ("rotary_emb.inv_freq", ".masked_bias", "attn.bias", "attention.bias")


def read_weights(
    declared: Sequence[Declaration],
    checkpoint: Checkpoint,
    report: Report,
    layout: Layout | None = None,
    *,
    in_turn: bool = False,
    memory: WeightMemory | None = None,
) -> list[jax.Array]:
    """Read every declared weight and place it on the devices of the layout.

    in_turn: all on this thread, which takes longer from a slow disk and less of the processors.
    memory: for those on one CPU. Raises CheckpointError naming a tensor that does not fit.
    """
    if found := next(mismatches(declared, checkpoint), None):
        raise CheckpointError(found)
    checkpoint = with_whole_names(checkpoint, _names(declared))
    over = layout or own_device()
    memory, bands = memory or WeightMemory(), BandMemory()

    def on_host(weight: Declaration) -> list[np.ndarray]:
        if weight.is_tiled:
            reader = functools.partial(_reader, weight, checkpoint, bands.empty)
            return in_tiles(weight, reader, memory.empty, _starts(weight, checkpoint))
        read = _reader(weight, checkpoint, memory.empty)
        return [aligned(read(leaf, whole(leaf.shape)), leaf.dtype) for leaf in weight.leaves]

    def on_devices(weight: Declaration) -> list[jax.Array]:
        if weight.is_tiled:
            return placed(weight, over, on_host(weight))
        read = _reader(weight, checkpoint)
        made = [place(leaf, over, functools.partial(read, leaf)) for leaf in weight.leaves]
        return jax.block_until_ready(made)  # so that the host copy is freed

    order, phase = _file_order(declared, checkpoint), "reading weights"
    ordered = [declared[index] for index in order]
    together = None if in_turn else _few_and_small(declared, checkpoint)
    bits = min((leaf.bits for weight in declared for leaf in weight.leaves), default=8)
    if uses_host_memory(over.mesh) and bits >= 8:  # less is copied as it is packed
        made = _placed_together(ordered, fill(ordered, on_host, phase, report, together), over)
    else:
        made = fill(ordered, on_devices, phase, report, together)
    by_weight = dict(zip(order, made, strict=True))
    return [leaf for index in range(len(declared)) for leaf in by_weight[index]]


def _placed_together(
    declared: Sequence[Declaration], made: Sequence[Sequence[np.ndarray]], layout: Layout
) -> Iterator[list[jax.Array]]:
    """Yield the arrays of each weight. One call for all of them: between passes over the numbers of
    a weight, which fill the caches, jax's own code takes several times as long."""
    leaves = [leaf for weight in declared for leaf in weight.leaves]
    shardings = [layout.sharding(each.shape, each.axes, each.bits) for each in leaves]
    arrays = iter(jax.device_put(list(itertools.chain.from_iterable(made)), shardings))
    for weight in declared:
        yield list(itertools.islice(arrays, len(weight.leaves)))


def mismatches(
    declared: Sequence[Declaration], checkpoint: Checkpoint, shown: int = 3
) -> Iterator[str]:
    """Yield every name or shape in a checkpoint that prevents loading it.

    Names `shown` of the missing and of the unknown tensors and counts the others.
    """
    wanted = _names(declared)
    checkpoint = with_whole_names(checkpoint, wanted)
    there = set(checkpoint.names())
    if missing := sorted(wanted - there):
        yield f"the checkpoint lacks {_some(missing, shown)}"
    # A tied head may be stored too; it repeats the embedding (checkpoints/opening.py).
    spare = {n for n in there - wanted if not n.endswith(_DERIVED) and n != "lm_head.weight"}
    if spare:
        unused = _some(sorted(spare), shown)
        yield f"the checkpoint has tensors that the model does not use: {unused}"
    for weight in declared:
        held = weight.low_rank is None and there.issuperset(weight.source.names)
        if held and (text := _misshapen(weight, checkpoint)):
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
    """Order weights by position in the file: disks read fastest front to back."""
    position = {name: number for number, name in enumerate(checkpoint.names())}

    def begins(index: int) -> int:
        return min((position[name] for name in declared[index].source.names), default=0)

    return sorted(range(len(declared)), key=begins)


def _few_and_small(declared: Sequence[Declaration], checkpoint: Checkpoint) -> Together:
    """Allow two weights in flight if their temporaries fit in twice the largest tensor."""

    def read(weight: Declaration) -> int:
        return max((checkpoint.nbytes(name) for name in weight.source.names), default=0)

    def beside(weight: Declaration) -> int:
        """Bytes of a tensor while read, and before it is packed: a byte per number of int4."""
        whole = weight.is_tiled and has_transposed(weight.source)
        return read(weight) + sum(leaf.bytes for leaf in weight.plain if leaf.bits < 8 or whole)

    limit = 2 * max(map(read, declared), default=0)
    return lambda weights: len(weights) <= AHEAD and sum(map(beside, weights)) <= limit


def _reader(
    weight: Declaration, checkpoint: Checkpoint, empty: Empty = aligned_empty
) -> Callable[[Leaf, Region], np.ndarray]:
    if weight.low_rank is not None:
        return lambda leaf, region: np.zeros(region_shape(region), leaf.dtype)
    if weight.packing is not None:
        return PackedReader(weight, weight.packing, checkpoint).read
    if checkpoint.format == ARRAYS and weight.is_tiled:
        return functools.partial(_read_in_place, weight.source, checkpoint, empty)
    return lambda leaf, region: weight.source.read(checkpoint, region, leaf.dtype, empty)


def _read_in_place(
    source: WeightSource, arrays: Checkpoint, empty: Empty, leaf: Leaf, region: Region
) -> np.ndarray:
    """Return a region where it lies if it is a part of one array, and read it otherwise."""
    first, *others = source.pieces(arrays, region)
    numbers = first.read(arrays)
    lies = numbers.shape == region_shape(region) and numbers.flags.c_contiguous
    if not others and lies and numbers.dtype == leaf.dtype:
        return numbers
    return source.read(arrays, region, leaf.dtype, empty)


class PackedReader:
    """Reader for one weight; drop it once the weight is placed."""

    def __init__(self, weight: Declaration, packing: Packing, checkpoint: Checkpoint) -> None:
        self._weight = weight
        self._packing = packing
        self._checkpoint = checkpoint
        self._dtypes = {leaf.part: leaf.dtype for leaf in weight.plain}
        self._block = packing.block or weight.shape[-1]
        self._read: dict[tuple[tuple[int, int], ...], PackedBlocks] = {}

    def read(self, leaf: Leaf, region: Region) -> np.ndarray:
        columns, inner = self._columns(leaf.part, region[-1])
        blocks = self._once((*region[:-1], columns))
        return _filled(_part(blocks, leaf.part)[..., inner], region_shape(region)[-1])

    def _once(self, region: Region) -> PackedBlocks:
        key = tuple((part.start, part.stop) for part in region)
        if key not in self._read:
            self._read[key] = self._blocks(region)
        return self._read[key]

    def _columns(self, part: str, given: slice) -> tuple[slice, slice]:
        """Return the whole blocks of columns that cover a region, and its place within them."""
        block = self._block
        if part != "values":
            stop = min(given.stop * block, self._weight.shape[-1])  # zeros may lie behind
            return slice(given.start * block, stop), slice(None)
        start, stop = given.start // block * block, -(-given.stop // block) * block
        return slice(start, stop), slice(given.start - start, given.stop - start)

    def _blocks(self, region: Region) -> PackedBlocks:
        out = self._empty(region_shape(region))
        pieces = list(self._weight.source.pieces(self._checkpoint, region))
        if self._weight.kept:
            for piece in pieces:
                self._put_kept(out, piece)
        elif all(piece.place[-1] == slice(0, out.values.shape[-1]) for piece in pieces):
            for piece in pieces:
                self._quantize(out, piece.place, piece.read(self._checkpoint))
        else:  # scales depend on whole rows, and no piece holds one
            numbers = self._weight.source.read(self._checkpoint, region)
            self._quantize(out, whole(numbers.shape), numbers)
        return out

    def _empty(self, shape: tuple[int, ...]) -> PackedBlocks:
        by_block = (*shape[:-1], shape[-1] // self._block)
        values, scales, offsets = (
            aligned_empty(shape if part == "values" else by_block, self._dtypes[part])
            if part in self._dtypes
            else None
            for part in _PARTS
        )
        assert values is not None
        assert scales is not None
        return PackedBlocks(values, scales, offsets)

    def _put(self, out: PackedBlocks, place: Region, blocks: PackedBlocks) -> None:
        columns = place[-1]
        by_block = slice(columns.start // self._block, columns.stop // self._block)
        out.values[place] = blocks.values
        out.scales[(*place[:-1], by_block)] = blocks.scales
        if out.offsets is not None:
            out.offsets[(*place[:-1], by_block)] = blocks.offsets

    def _put_kept(self, out: PackedBlocks, piece: RegionPiece) -> None:
        """Put in a piece as it is stored. New weights that are stored otherwise than those that the
        model was loaded with are quantised in the form of these."""
        form, inputs = self._checkpoint.packing(piece.name), self._weight.shape[-1]
        if form is None or piece.transposed or not fits(form, self._packing, inputs):
            self._quantize(out, piece.place, piece.read(self._checkpoint))
            return
        blocks = self._checkpoint.read_packed(piece.name, piece.region)
        self._put(out, piece.place, refined(blocks, form, self._packing))

    def _quantize(self, out: PackedBlocks, place: Region, numbers: np.ndarray) -> None:
        *outer, rows, columns = place
        height = max(1, _QUANTISED_BAND // max(numbers.shape[-1], 1))

        def one(first: int) -> None:
            band = numbers[..., first : first + height, :]
            start = rows.start + first
            stop = start + band.shape[-2]
            self._put(out, (*outer, slice(start, stop), columns), quantize(band, self._packing))

        _each(one, range(0, numbers.shape[-2], height))


def _each(work: Callable[[int], None], bands: Sequence[int]) -> None:
    """Split a large part over threads; numpy releases the GIL."""
    threads = min(_THREADS, os.cpu_count() or 1)
    if len(bands) < _ALONE or threads < 2:
        deque(map(work, bands), maxlen=0)
        return
    with ThreadPoolExecutor(threads, "quantize") as pool:
        deque(pool.map(work, bands), maxlen=0)


def _part(blocks: PackedBlocks, part: str) -> np.ndarray:
    found = getattr(blocks, part)
    assert found is not None, f"the packing says that there are {part}"
    return found


def _filled(found: np.ndarray, columns: int) -> np.ndarray:
    """[..., columns], with zeros behind what was found."""
    rest = columns - found.shape[-1]
    return np.pad(found, (*[(0, 0)] * (found.ndim - 1), (0, rest))) if rest else found
