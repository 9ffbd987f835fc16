"""Opens the arrays of a checkpoint and finds out in which dialect they are named.

A Pax checkpoint needs no config.json: Saxml's class brings what its sizes do not say.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import numpy as np
import tensorstore as ts

from model_server.checkpoints.files import MOST_JSON, parse_json
from model_server.checkpoints.orbax.dialect import (
    EXACT,
    FLAX,
    Dialect,
    Shape,
    find_dialect,
    translate,
)
from model_server.checkpoints.orbax.folder import Folder, reason
from model_server.checkpoints.orbax.layout import MANIFEST, METADATA, OrbaxLayout
from model_server.checkpoints.orbax.pax.dialect import PRAXIS, QueryScales, query_scales, sizes_only
from model_server.checkpoints.orbax.pax.flax_file import read_flax_tree
from model_server.checkpoints.orbax.pax.model import PraxisModel, praxis_model
from model_server.checkpoints.orbax.published import GEMMA, MAXTEXT
from model_server.checkpoints.orbax.uncompressed import UncompressedArray, arrays_in_files
from model_server.checkpoints.orbax.view import OrbaxView
from model_server.checkpoints.region import Region, deliver, explicit, region_shape
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)

# Lists the arrays of an Orbax checkpoint by path and opens them with tensorstore.
#
# Handles one OCDBT database for all arrays or a folder for each, in zarr 2 or zarr 3. Only numeric
# arrays are read; other leaves (strings, Python objects) are ignored, and nothing is unpickled.

_NOT_ARRAYS = ("string", "None", "Dict", "List", "Tuple", "NamedTuple")
_LARGEST_CHUNK = 1 << 28  # bytes, whatever the size of its array
_ZARRAY, _ZARR_JSON = ".zarray", "zarr.json"
# Cache inner nodes of OCDBT's tree, but not chunks, which are read once.
_CONTEXT = {
    "cache_pool": {"total_bytes_limit": 0},
    "cache_pool#nodes": {"total_bytes_limit": 2**26},
}


@dataclass(frozen=True, slots=True)
class Tree:
    """The arrays that a checkpoint's metadata lists, before any is opened."""

    folder: Folder
    ocdbt: bool
    zeros_are_stored: bool  # if so, a missing chunk means damage
    arrays: Mapping[str, tuple[str, bool]]  # path a/b/c -> name on disk, True for zarr 3

    @property
    def paths(self) -> Iterable[str]:
        return self.arrays

    def open(self, paths: Iterable[str]) -> dict[str, Any]:
        """Open arrays for reading, by path. Raises CheckpointError, naming a missing array."""
        return _open_arrays(self, paths)

    def in_files(self) -> dict[str, UncompressedArray]:
        """Return the arrays that are read without tensorstore, by path."""
        names = {name: path for path, (name, zarr3) in self.arrays.items() if not zarr3}
        found = arrays_in_files(self.folder, names) if self.ocdbt else {}
        return {names[name]: array for name, array in found.items()}


def read_tree(folder: Folder) -> Tree:
    """Read the metadata. Raises CheckpointError if it is invalid."""
    ocdbt = folder.has(MANIFEST)
    raw = folder.read(METADATA, MOST_JSON)
    if raw is None:
        return Tree(folder, ocdbt, False, _listed(folder, ocdbt))
    try:
        return _described(folder, ocdbt, parse_json(raw.decode()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise CheckpointError(f"{folder.url}/{METADATA} is not what Orbax writes: {exc!r}") from exc


def _open_arrays(tree: Tree, paths: Iterable[str]) -> dict[str, Any]:
    context = ts.Context(_CONTEXT)
    wanted = {path: tree.arrays[path] for path in paths}
    opening = {
        path: ts.open(_spec(tree, *stored), open=True, read=True, context=context)
        for path, stored in wanted.items()
    }
    opened: dict[str, Any] = {}
    for path, future in opening.items():
        try:
            opened[path] = future.result()
        except (ValueError, OSError) as exc:
            raise CheckpointError(
                f"{tree.folder.url} lacks the array {wanted[path][0]} or it is damaged: "
                f"{reason(exc)}"
            ) from exc
        _check_chunks(tree, wanted[path][0], opened[path])
    return opened


def _check_chunks(tree: Tree, name: str, array: Any) -> None:
    """Raise CheckpointError for chunks that take far more memory than the whole array."""
    chunk, itemsize = array.chunk_layout.read_chunk.shape, array.dtype.numpy_dtype.itemsize
    size = math.prod(chunk or ()) * itemsize
    if size > max(_LARGEST_CHUNK, 4 * math.prod(array.shape) * itemsize):
        raise CheckpointError(
            f"{tree.folder.url}: the array {name} is {list(array.shape)} in chunks of "
            f"{list(chunk)}, each of which takes {size} bytes to read"
        )


class ChunkCache:
    """Keeps the decoded chunks of arrays of which a part was read last. Thread-safe.

    By default Orbax writes an array as one compressed chunk, which every part would decode again.
    All that it keeps is no larger than the largest of the arrays so far.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}  # by path; the last that was asked for is the last
        self._most = 0  # bytes
        self._guard = threading.Lock()

    def of(self, array: Any, view: OrbaxView, region: Region | None) -> Any:
        """Return an array that keeps its chunks, if a region of its view is a part of it."""
        if not isinstance(array, ts.TensorStore):
            return array
        wanted = region_shape(explicit(region or (), view.shape(tuple(array.shape))))
        with self._guard:
            kept = self._kept.pop(view.path, None)
            self._make_room(_bytes_of(array))
            if math.prod(wanted) >= math.prod(array.shape):
                return array
            self._kept[view.path] = kept or _keeping_chunks(array)
            return self._kept[view.path]

    def _make_room(self, size: int) -> None:
        self._most = max(self._most, size)
        while self._kept and size + sum(map(_bytes_of, self._kept.values())) > self._most:
            del self._kept[next(iter(self._kept))]


def _bytes_of(array: Any) -> int:
    return math.prod(array.shape) * array.dtype.numpy_dtype.itemsize


def _keeping_chunks(array: Any) -> Any:
    itemsize = array.dtype.numpy_dtype.itemsize
    chunk = math.prod(array.chunk_layout.read_chunk.shape) * itemsize
    most = min(math.prod(array.shape) * itemsize + chunk, max(_LARGEST_CHUNK, 2 * chunk))
    spec = array.spec().to_json() | {"recheck_cached_data": "open"}
    context = ts.Context({"cache_pool": {"total_bytes_limit": most}})
    return ts.open(spec, open=True, read=True, context=context).result()


def _described(folder: Folder, ocdbt: bool, metadata: dict[str, Any]) -> Tree:
    zarr3 = bool(metadata.get("use_zarr3", False))
    arrays: dict[str, tuple[str, bool]] = {}
    for entry in metadata["tree_metadata"].values():
        value = entry["value_metadata"]
        if value.get("skip_deserialize") or value["value_type"] in _NOT_ARRAYS:
            continue
        keys = [str(part["key"]) for part in entry["key_metadata"]]
        if ".." in "/".join(keys).split("/"):
            raise CheckpointError(
                f"{folder.url}/{METADATA} names an array outside the checkpoint: {keys}"
            )
        arrays[_path(keys)] = (".".join(keys), zarr3)
    zeros = bool(metadata.get("store_array_data_equal_to_fill_value", False))
    return Tree(folder, ocdbt, zeros, arrays)


def _listed(folder: Folder, ocdbt: bool) -> dict[str, tuple[str, bool]]:
    """List the arrays of an old checkpoint without metadata by looking for their files."""
    found: dict[str, tuple[str, bool]] = {}
    for key in _keys(folder) if ocdbt else folder.files():
        name, _, last = key.rpartition("/")
        if last in (_ZARRAY, _ZARR_JSON):
            found[_path([name])] = (name, last == _ZARR_JSON)
    return found


def _keys(folder: Folder) -> list[str]:
    try:
        store = ts.KvStore.open({"driver": "ocdbt", "base": folder.spec()}).result()
        return [key.decode() for key in store.list().result()]
    except (ValueError, OSError) as exc:
        raise CheckpointError(f"{folder.url}/{MANIFEST} cannot be read: {reason(exc)}") from exc


def _path(keys: list[str]) -> str:
    """Normalise to a/b/c: some trees nest keys, some join them with dots or slashes."""
    return "/".join(keys).replace(".", "/")


def _spec(tree: Tree, name: str, zarr3: bool) -> dict[str, Any]:
    if tree.ocdbt:
        store = {
            "driver": "ocdbt",
            "base": tree.folder.spec(),
            "path": f"{name}/",
            "cache_pool": "cache_pool#nodes",
        }
    else:
        store = tree.folder.child(name).spec()
    return {
        "driver": "zarr3" if zarr3 else "zarr",
        "kvstore": store,
        "fill_missing_data_reads": not tree.zeros_are_stored,
    }


_FILE = "metadata"  # in a folder of this name
_DEEPEST = 64

# Dequantises what Saxml's tools quantised offline: int8 with a float scale per output channel.
#
# The scale of a variable has its axes but those that are summed over. Its numbers, laid out as the
# tensor's rows, multiply them as they are read.


@dataclass(frozen=True, slots=True)
class RowScales:
    """The scales of a model's variables. `arrays` are tensorstores, by path."""

    model: PraxisModel
    arrays: Mapping[str, Any]

    def concerns(self, view: OrbaxView) -> bool:
        """Tell whether a view is of a quantised variable."""
        return view.path in self.model.scales

    def apply(self, view: OrbaxView, numbers: np.ndarray, region: Region | None) -> np.ndarray:
        """Return a region of a quantised variable's view, dequantised: f32."""
        rows = self._laid_out(view).read(self._array(view), region[:1] if region else None)
        return numbers.astype(np.float32) * rows.astype(np.float32)[:, None]

    def _array(self, view: OrbaxView) -> Any:
        return self.arrays[self.model.scales[view.path]]

    def _laid_out(self, view: OrbaxView) -> OrbaxView:
        """Return the view of the scale whose numbers are those of the rows of `view`."""
        path = self.model.scales[view.path]
        axes, own = self.model.axes(view.path), self.model.axes(path)
        dims = tuple(own.index(axes[axis]) for axis in view.dims[0])
        taken = tuple((own.index(axes[axis]), index) for axis, index in view.taken)
        return OrbaxView(path, (dims,), taken, view.rows, paired=view.paired)


# Tried in order, the most specific marks first.
DIALECTS = (PRAXIS, GEMMA, MAXTEXT, FLAX, EXACT)
_MODEL = "mdl_vars/"  # of Pax's train states, beside step, opt_states and extra_state


class _ListedArrays(Protocol):
    """Arrays that are listed, but not opened."""

    @property
    def paths(self) -> Iterable[str]: ...

    def open(self, paths: Iterable[str]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint's tensors, by Hugging Face's names, in arrays that are open."""

    dialect: Dialect
    config: dict[str, Any]
    views: Mapping[str, OrbaxView]
    arrays: Mapping[str, Any]  # tensorstores by path, or what is read without tensorstore
    open: Callable[[str], Any]  # makes a tensorstore, by path
    scales: QueryScales | None = None
    row_scales: RowScales | None = None  # of quantised variables
    cache: ChunkCache = field(default_factory=ChunkCache)

    def is_quantized(self, name: str) -> bool:
        return self.row_scales is not None and self.row_scales.concerns(self.views[name])

    def in_float32(self, name: str) -> bool:
        """Tell whether a tensor is computed from what is stored, so that it is not rounded."""
        scaled = self.scales is not None and self.scales.concerns(name)
        return scaled or self.is_quantized(name) or bool(self.views[name].offset)

    def read(self, name: str, region: Region | None, out: np.ndarray | None) -> np.ndarray:
        """Read a tensor or a region of it. Raises ValueError or OSError for damaged arrays."""
        view = self.views[name]
        array = self.arrays[view.path]
        if isinstance(array, UncompressedArray):
            if view.is_as_stored:
                return array.read(region, out)
            array = self.open(view.path)
        if not self.in_float32(name):
            return view.read(self.cache.of(array, view, region), region, out)
        numbers = view.read(array, region)
        if self.row_scales is not None and self.is_quantized(name):
            numbers = self.row_scales.apply(view, numbers, region)
        if self.scales is not None and self.scales.concerns(name):
            numbers = self.scales.apply(name, numbers, region)
        return deliver(numbers, out)


def read_contents(layout: OrbaxLayout, config: dict[str, Any] | None) -> Contents:
    """Open all arrays of the model. `config`: config.json, None if there is none.

    Raises CheckpointError, naming the place and the array.
    """
    tree: _ListedArrays = (
        read_flax_tree(layout.arrays, layout.file) if layout.file else read_tree(layout.arrays)
    )
    weights = _weights(tree.paths)
    dialect = find_dialect(DIALECTS, weights)
    if dialect is None or (config is None and dialect is not PRAXIS):
        raise CheckpointError(_unreadable(layout, weights, dialect))
    # Views of Pax's may be scaled, and its arrays padded.
    direct = tree.in_files() if isinstance(tree, Tree) and dialect is not PRAXIS else {}
    opened = direct | tree.open(path for path in weights.values() if path not in direct)
    arrays = {short: opened[path] for short, path in weights.items()}
    if dialect is PRAXIS:
        arrays = without_padding(layout, arrays)

    @cache
    def through_tensorstore(short: str) -> Any:
        return tree.open([weights[short]])[weights[short]]

    try:
        return _translated(dialect, config, arrays, through_tensorstore)
    except CheckpointError as exc:
        raise CheckpointError(f"{layout.arrays.url}: {exc.text}") from exc


def _translated(
    dialect: Dialect,
    config: dict[str, Any] | None,
    arrays: Mapping[str, Any],
    through_tensorstore: Callable[[str], Any],
) -> Contents:
    shapes = {path: tuple(array.shape) for path, array in arrays.items()}
    known = sizes_only(shapes) if config is None else config
    made = Contents(dialect, known, translate(dialect, known, shapes), arrays, through_tensorstore)
    if dialect is not PRAXIS:
        return made
    rows = RowScales(praxis_model(shapes), arrays)
    return replace(made, scales=query_scales(shapes, arrays), row_scales=rows)


def _unreadable(layout: OrbaxLayout, weights: Mapping[str, str], dialect: Dialect | None) -> str:
    url = layout.arrays.url
    if dialect is not None:
        return (
            f"{url} holds Orbax arrays but no config.json: put the model's config.json and "
            "tokenizer files beside them"
        )
    some = ", ".join(list(weights)[:3]) or "nothing"
    known = "; ".join(dialect.name for dialect in DIALECTS)
    return f"{url} has an unknown layout of weights: it holds {some}. Known are {known}"


def _weights(paths: Iterable[str]) -> dict[str, str]:
    """Return the weights of a training state: short path -> path, without common prefixes."""
    found = {path: path for path in paths}
    if model := {path: path for path in found if path.startswith(_MODEL)}:
        if others := [path for path in found if path not in model]:
            logger.info(
                "reading the model of a train state; ignoring %d arrays of its optimizer and "
                "others, such as %s",
                len(others),
                others[0],
            )
        return model
    while inner := {
        short.removeprefix("params/"): path
        for short, path in found.items()
        if short.startswith("params/")
    }:
        found = inner
    # nnx saves every variable as an object with the single field `value`.
    if found and all(short.endswith("/value") for short in found):
        found = {short.removesuffix("/value"): path for short, path in found.items()}
    return found


# Cuts arrays down to the shapes that Pax's metadata says they have.
#
# A training on a mesh pads axes that its devices do not divide, and stores the padding. From
# version 1.1 on, the file `metadata/metadata` beside `state` has the true shape of every variable.


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
