"""Reads requirements/*.txt, and what pyproject.toml asks of each of them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Which extras each image is made of.
EXTRAS = {
    "control": {"kubernetes", "traces"},
    "model-cpu": {"cpu", "media", "traces"},
    "model-tpu": {"tpu", "media", "traces"},
    "model-cuda": {"cuda", "media", "traces"},
}
# Where the images run.
PLACE = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
}

_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)")


@dataclass(frozen=True)
class Pin:
    """One line of a lock."""

    version: str
    hashes: tuple[str, ...]


def path_of(name: str) -> Path:
    """The lock of this name."""
    return ROOT / "requirements" / f"{name}.txt"


def read_lock(name: str) -> dict[str, Pin]:
    """Every package of a lock; a line that is anything else fails."""
    return read_pins(path_of(name).read_text())


def read_pins(text: str) -> dict[str, Pin]:
    """The same of a text."""
    pins: dict[str, Pin] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        found = _PIN.fullmatch(words[0])
        assert found, line
        hashes = tuple(word.removeprefix("--hash=sha256:") for word in words[1:])
        pins[canonicalize_name(found["name"])] = Pin(found["version"], hashes)
    return pins


def wanted(name: str) -> list[Requirement]:
    """What must be in a lock directly, the extras of ours unfolded."""
    if name == "build":
        groups = PROJECT["build-system"]["requires"], PROJECT["dependency-groups"]["compiler"]
        return [Requirement(text) for group in groups for text in group]
    project = PROJECT["project"]
    return [*map(Requirement, project["dependencies"]), *_of_extras(EXTRAS[name])]


def _of_extras(extras: set[str]) -> Iterator[Requirement]:
    for extra in sorted(extras):
        for text in PROJECT["project"]["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == PROJECT["project"]["name"]:
                yield from _of_extras(requirement.extras)
            elif requirement.marker is None or requirement.marker.evaluate(PLACE):
                yield requirement
