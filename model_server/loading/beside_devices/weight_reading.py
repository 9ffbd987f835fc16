"""Weights that an island's workers are asked to read for a controller.

The controller tells where the checkpoint is and how its model is made of it; the workers derive
the same arrays from that. Plain data: no code crosses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from model_server.checkpoints.roots import local_place

READ_WEIGHTS = "sax.read_weights"  # the name of the call
ATTRIBUTE = "reads_checkpoints"  # of a device: its worker may read some
_MOST_FILES = 100_000


class WeightReading(msgspec.Struct, frozen=True, kw_only=True):
    """Some weights of one model on the devices of one island."""

    checkpoint: str  # path or URL, the same on all machines
    size: tuple[int, int]  # files and bytes of it, as the controller sees them
    model_path: str
    overrides: dict[str, str]
    stage: int | None  # of a pipeline; None: the whole model
    mesh: tuple[int, ...]
    first: int  # of the declared weights, in their order
    count: int


ENCODER, DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(WeightReading)


def size_of(checkpoint: str) -> tuple[int, int]:
    """Return the number of files and bytes of a checkpoint; of a URL nothing is asked: (0, 0).

    Raises OSError. Hidden files, such as those of a download, do not count.
    """
    place = local_place(checkpoint)
    if place is None:
        return 0, 0
    sizes = [place.stat().st_size] if place.is_file() else list(_sizes(place))
    return len(sizes), sum(sizes)


def _sizes(folder: Path) -> Iterator[int]:
    found = 0
    for at, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            found += 1
            if found > _MOST_FILES:
                return
            if not name.startswith("."):
                yield (Path(at) / name).stat().st_size


def _raise(error: OSError) -> None:
    raise error
