"""Locates the arrays of an Orbax checkpoint in a folder and checks that its save was completed.

A path may name the arrays themselves, a step (`<n>/default`, `<n>/params`, ...), or a folder of
steps, of which the last completed one is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from model_server.checkpoints.orbax.folder import Folder
from sax.errors import CheckpointError

METADATA = "_METADATA"
MANIFEST = "manifest.ocdbt"
COMMITTED = "commit_success.txt"
STEP_METADATA = "_CHECKPOINT_METADATA"
_AGGREGATE = "checkpoint"  # written by Orbax before 2023 and by flax.training.checkpoints
_MARKS = (METADATA, MANIFEST)
# Names of the items under a step, those that hold only weights first.
ITEMS = ("params", "model_params", "default", "items", "state", "train_state")
_STEP = re.compile(r"(?:[a-z_]+_)?(\d{1,18})")
_UNFINISHED = ".orbax-checkpoint-tmp"


@dataclass(frozen=True, slots=True)
class OrbaxLayout:
    arrays: Folder
    beside: tuple[Folder, ...]  # where config.json may be, the most likely first


def find_layout(folder: Folder) -> OrbaxLayout | None:
    """Locate a checkpoint; None if there is none. Raises CheckpointError if it is incomplete."""
    _refuse_unfinished_name(folder)
    arrays = _find_arrays(folder)
    if arrays is None:
        return None
    _check_finished(arrays)
    return OrbaxLayout(arrays, _around(arrays))


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
    if any(_is_plain_array(folder, name) for name in names):
        return folder
    _refuse_aggregate(folder, names)
    return None


def _item(step: Folder) -> Folder | None:
    return next((item for name in ITEMS if (item := step.child(name)).has(*_MARKS)), None)


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


def _refuse_aggregate(folder: Folder, names: list[str]) -> None:
    if _AGGREGATE in names:
        raise CheckpointError(
            f"{folder.url} holds one msgpack file, {_AGGREGATE}, written by flax.training."
            "checkpoints: its arrays cannot be read one by one. Restore it with Orbax where it was "
            "made and save it with orbax.checkpoint.PyTreeCheckpointer"
        )


def _unfinished(folder: Folder, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder.url} is an incomplete Orbax checkpoint: {why}. "
        "Name a complete step, or save it again"
    )
