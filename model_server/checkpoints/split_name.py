"""Names of the files of one GGUF checkpoint.

It may be split, NAME-00001-of-00003.gguf, and its encoder of pictures lies in a file of its own:
mmproj-NAME-F16.gguf, mmproj-F16.gguf.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

_PART = re.compile(r"(?P<whole>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MOST_PARTS = 10_000
_ENCODER = "mmproj"
# Kinds of numbers in the name of an encoder's file, the first wanted most
_KINDS = ("bf16", "f16", "fp16", "f32", "fp32", "q8_0")
_NOT_OF_NAME = re.compile(rf"{_ENCODER}|\bmodel\b|{'|'.join(_KINDS)}|[^a-z0-9]")


def part_names(name: str) -> list[str]:
    """Return the names of all parts, in order, if this is one of several; else nothing."""
    match = _PART.fullmatch(name)
    if match is None:
        return []
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= _MOST_PARTS or count == 1:
        return []
    return [f"{match['whole']}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1)]


def whole_name(name: str) -> str:
    """Return the name without the number of a part."""
    match = _PART.fullmatch(name)
    return f"{match['whole']}.gguf" if match else name


def is_mmproj(name: str) -> bool:
    """Return True for the file of an encoder."""
    return name.endswith(".gguf") and _ENCODER in PurePosixPath(name).name.lower()


def mmproj_of(name: str, names: Sequence[str]) -> str | None:
    """Return the file of a model's encoder among those of its folder; None: there is none.

    A file that names a model belongs to those whose names begin so; one that names none to any. Of
    several the one with the numbers that are wanted most is taken.
    """
    folder, own = PurePosixPath(name).parent, _model(name)
    beside = [each for each in names if PurePosixPath(each).parent == folder and is_mmproj(each)]
    fitting = [each for each in beside if own.startswith(_model(each))]
    return min(fitting, key=_order, default=None)


def _model(name: str) -> str:
    """Return the letters and digits of the model's name in a file's, without the rest."""
    return _NOT_OF_NAME.sub("", PurePosixPath(whole_name(name)).stem.lower())


def _order(name: str) -> tuple[int, int, str]:
    """Files that name the model come first, then by the kind of their numbers."""
    stem = PurePosixPath(name).stem.lower()
    kind = next((index for index, each in enumerate(_KINDS) if each in stem), len(_KINDS))
    return -len(_model(name)), kind, name
