"""Lists the arrays of an Orbax checkpoint by path and opens them with tensorstore.

Handles one OCDBT database for all arrays or a folder for each, in zarr 2 or zarr 3. Only numeric
arrays are read; other leaves (strings, Python objects) are ignored, and nothing is unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorstore as ts

from model_server.checkpoints.json_file import MOST_JSON, parse_json
from model_server.checkpoints.orbax.folder import Folder, reason
from model_server.checkpoints.orbax.layout import MANIFEST, METADATA
from sax.errors import CheckpointError

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
