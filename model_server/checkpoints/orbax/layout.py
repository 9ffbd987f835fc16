"""Locates the arrays of an Orbax checkpoint in a folder and checks that its save was completed.

A path may name the arrays themselves, a step (`<n>/default`, `<n>/params`, ...), or a folder of
steps, of which the last completed one is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from model_server.checkpoints.orbax.folder import Folder
from sax.errors import CheckpointError

METADATA = "_METADATA"
MANIFEST = "manifest.ocdbt"
COMMITTED = "commit_success.txt"
STEP_METADATA = "_CHECKPOINT_METADATA"
# All arrays in one msgpack file: written by Pax, by Orbax before 2023 and by
# flax.training.checkpoints.
AGGREGATE = "checkpoint"
_MARKS = (METADATA, MANIFEST)
# Names of the items under a step, those that hold only weights first.
ITEMS = ("params", "model_params", "default", "items", "state", "train_state")
_STEP = re.compile(r"(?:[a-z_]+_)?(\d{1,18})")
_UNFINISHED = ".orbax-checkpoint-tmp"


@dataclass(frozen=True, slots=True)
class OrbaxLayout:
    arrays: Folder
    beside: tuple[Folder, ...]  # where config.json may be, the most likely first
    file: str | None = None  # in `arrays`, if all of them are in one file


def find_layout(folder: Folder) -> OrbaxLayout | None:
    """Locate a checkpoint; None if there is none. Raises CheckpointError if it is incomplete."""
    _refuse_unfinished_name(folder)
    arrays = _find_arrays(folder)
    if arrays is None:
        return _find_file(folder)
    _check_finished(arrays)
    return OrbaxLayout(arrays, _around(arrays))


def layout_of_file(folder: Folder, name: str) -> OrbaxLayout:
    """Return the layout of a checkpoint that is one msgpack file. Raises CheckpointError."""
    if not folder.is_local:
        raise CheckpointError(
            f"{folder.url} holds its arrays in one msgpack file, {name}, which is read from local "
            "paths only: copy it to this machine"
        )
    return OrbaxLayout(folder, _around(folder), name)


def _find_arrays(folder: Folder) -> Folder | None:
    if folder.has(*_MARKS):
        return folder
    if (item := _item(folder)) is not None:
        return item
    names = folder.children()
    if any(name.startswith("ocdbt.process_") for name in names):
        raise _unfinished(folder, f"it has no {MANIFEST} to merge what its processes wrote")
    if step := _last_step(folder, names):
        return _item(step) or (step if step.has(*_MARKS) else None)
    return folder if _has_plain_arrays(folder, names) else None


def _find_file(folder: Folder) -> OrbaxLayout | None:
    """Look for the file in a step and its items, then in the last of the steps."""
    names = folder.children()
    if found := _file_in(folder, names):
        return found
    numbers = {int(match[1]): name for name in names if (match := _STEP.fullmatch(name))}
    for number in sorted(numbers, reverse=True):
        step = folder.child(numbers[number])
        if step.is_local and step.path.is_file():  # the oldest of Pax: a file for each step
            return layout_of_file(folder, step.name) if is_msgpack_map(step.path) else None
        return _file_in(step, step.children())
    return None


def _file_in(step: Folder, names: list[str]) -> OrbaxLayout | None:
    if AGGREGATE in names and _may_be_file(step.child(AGGREGATE)):
        return layout_of_file(step, AGGREGATE)
    items = (step.child(name) for name in ITEMS if name in names)
    found = (item for item in items if _may_be_folder(item) and AGGREGATE in item.children())
    return next((layout_of_file(item, AGGREGATE) for item in found), None)


def _may_be_file(place: Folder) -> bool:
    return not place.is_local or place.path.is_file()


def _may_be_folder(place: Folder) -> bool:
    return not place.is_local or place.path.is_dir()


def is_msgpack_map(path: Path) -> bool:
    """Tell whether a regular file begins as flax's do."""
    with path.open("rb") as opened:
        return opened.read(1) in _MAPS


_MAPS = [bytes([byte]) for byte in (*range(0x80, 0x90), 0xDE, 0xDF)]


def _item(step: Folder) -> Folder | None:
    """Return the item of a step that holds arrays, those that hold only weights first."""
    if not _may_be_folder(step):
        return None
    items = [step.child(name) for name in ITEMS]
    if marked := next((item for item in items if item.has(*_MARKS)), None):
        return marked
    there = set(step.children()).intersection(ITEMS)
    plain = (item for item in items if item.name in there and _may_be_folder(item))
    return next((item for item in plain if _has_plain_arrays(item, item.children())), None)


def _has_plain_arrays(folder: Folder, names: list[str]) -> bool:
    return any(_is_plain_array(folder, name) for name in names)


def _last_step(folder: Folder, names: list[str]) -> Folder | None:
    numbers = {int(match[1]): name for name in names if (match := _STEP.fullmatch(name))}
    steps = [folder.child(numbers[number]) for number in sorted(numbers, reverse=True)]
    finished = (step for step in steps if step.scheme != "gs" or step.has(COMMITTED))
    found = next(finished, None)
    unfinished = [name for name in names if _UNFINISHED in name]
    if found is None and (steps or unfinished):
        name = steps[0].name if steps else unfinished[-1]
        raise _unfinished(folder.child(name), "there is no other step")
    return found


def _is_plain_array(folder: Folder, name: str) -> bool:
    return not name.startswith(".") and folder.child(name).has(".zarray", "zarr.json")


def _around(arrays: Folder) -> tuple[Folder, ...]:
    """Return the folder of the arrays and the parents that belong to the same checkpoint."""
    found = [arrays]
    if arrays.name in ITEMS and arrays.parent is not None:
        found.append(arrays.parent)
    step = found[-1]
    if _STEP.fullmatch(step.name) and step.parent is not None:
        found.append(step.parent)
    return tuple(found)


def _check_finished(arrays: Folder) -> None:
    if arrays.scheme != "gs":  # elsewhere Orbax marks completion by renaming the folder
        return
    places = (arrays, arrays.parent) if arrays.name in ITEMS else (arrays,)
    if not any(place.has(COMMITTED) for place in places if place is not None):
        raise _unfinished(arrays, f"it has no {COMMITTED}")


def _refuse_unfinished_name(folder: Folder) -> None:
    if _UNFINISHED in folder.url:
        raise _unfinished(folder, f"{_UNFINISHED} in its name marks a save in progress")


def _unfinished(folder: Folder, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder.url} is an incomplete Orbax checkpoint: {why}. "
        "Name a complete step, or save it again"
    )
