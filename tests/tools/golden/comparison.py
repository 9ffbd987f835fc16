"""Compares files that were made again with those of tests/golden."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

# Another release of a library sums in another order; on one machine most arrays are equal.
CLOSE = 2e-5
# Keys that name the releases that made a file, or the folder in which they did.
_CIRCUMSTANCES = {"how", "transformers_version", "peft_version", "__version__"}
_CIRCUMSTANCES |= {"base_model_name_or_path"}
_SETS = {"target_modules", "modules_to_save"}  # written in any order
_TOLD = 5  # differences of a JSON file that are told


def differences(made: Path, kept: Path) -> Iterator[str]:
    """Yield what differs between two folders' files, by file and array or key."""
    files = sorted(each for each in made.rglob("*") if each.is_file())
    if not files:
        yield f"{made}: nothing was made"
    for file in files:
        name = file.relative_to(made)
        if not (kept / name).exists():
            yield f"{name} is not among the golden files"
        elif file.suffix == ".npz":
            yield from _arrays(str(name), file, kept / name)
        elif ".json" in file.suffixes:
            found = _values(f"{name}: ", _read(file), _read(kept / name))
            yield from islice(found, _TOLD)
        elif file.read_bytes() != (kept / name).read_bytes():
            yield f"{name} is not equal"


def _arrays(name: str, made: Path, kept: Path) -> Iterator[str]:
    with np.load(made) as one, np.load(kept) as other:
        for array in sorted({*one.files} ^ {*other.files}):
            yield f"{name}: {array} is in one of them only"
        for array in sorted(({*one.files} & {*other.files}) - _CIRCUMSTANCES):
            yield from _different(f"{name}: {array}", one[array], other[array])


def _different(name: str, one: np.ndarray, other: np.ndarray) -> Iterator[str]:
    if one.shape != other.shape:
        yield f"{name} has the shape {one.shape}, not {other.shape}"
    elif one.dtype.kind not in "fV" or one.dtype != other.dtype:
        if not np.array_equal(one, other):
            yield f"{name} is not equal"
    elif one.dtype.kind == "f" and not np.allclose(one, other, rtol=0, atol=CLOSE):
        yield f"{name} differs by up to {np.abs(one - other).max():.2g}"


def _read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def _values(name: str, one: Any, other: Any) -> Iterator[str]:
    """Yield what differs between two JSON values, by the path of the key."""
    match one, other:
        case dict(), dict():
            for key in sorted(({*one} ^ {*other}) - _CIRCUMSTANCES):
                yield f"{name}{key} is in one of them only"
            for key in sorted(({*one} & {*other}) - _CIRCUMSTANCES):
                pair = (one[key], other[key])
                if key in _SETS and all(isinstance(each, list) for each in pair):
                    pair = (sorted(one[key]), sorted(other[key]))
                yield from _values(f"{name}{key}.", *pair)
        case list(), list() if len(one) == len(other):
            for place, pair in enumerate(zip(one, other, strict=True)):
                yield from _values(f"{name}{place}.", *pair)
        case (float(), float() | int()) | (int(), float()):
            if one != other and not abs(one - other) <= CLOSE:
                yield f"{name[:-1]} is {one}, not {other}"
        case _ if one != other:
            yield f"{name[:-1]} is {one!s:.60}, not {other!s:.60}"
        case _:
            return
