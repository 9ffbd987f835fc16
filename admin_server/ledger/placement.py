"""Requirements of a model on the server that holds it.

Read from the spec (its path, its `placement`, and the overrides in which Saxml's operators state
the same: `constraints` for tags; `ram` and `ram<devices>` for bytes per device), and from what
servers that were too small for it reported. Those overrides are for this admin server alone: no
model server gets them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from sax.errors import InvalidRequest
from sax.format import quoted, shortened
from sax.need import Need
from sax.overrides.known_paths import OF_PLACEMENT
from sax.types import ModelSpec, ServerInfo

_SAXML_PREFIX = "saxml.server."
_CONSTRAINTS = "constraints"
_RAM = "ram"
MODEL_TAG = "model:"  # plus a model's name: a server with this tag is reserved for that model
_MOST = 2**62  # bytes or devices: fits in a record and on the wire


@dataclass(frozen=True, slots=True)
class ServerDemand:
    """Requirements on a server for a replica, whatever it already holds."""

    path: str  # bare
    tags: tuple[str, ...]  # all required, sorted
    devices: int
    model_id: str = ""

    def met_by_server(self, info: ServerInfo) -> bool:
        reserved = reserved_for(info.tags)
        open_to_us = not reserved or self.model_id in reserved
        paths, tags = _bare_paths(info.model_paths), frozenset(info.tags)
        return open_to_us and self.met_by(paths, tags, devices_of(info))

    def met_by(self, paths: frozenset[str], tags: frozenset[str], devices: int) -> bool:
        """True if bare paths, tags and devices suffice. 0 devices: unknown."""
        return self.path in paths and devices >= self.devices and tags.issuperset(self.tags)


def demand_of(spec: ModelSpec, need: Need | None = None) -> ServerDemand:
    """The demand stated by the spec, raised by the need that servers reported.

    Total: a record in the log was checked when it was made.
    """
    tags = spec.placement.tags
    if _CONSTRAINTS in spec.overrides:
        tags = (*tags, *_tags(spec.overrides[_CONSTRAINTS]))
    devices = max(spec.placement.devices, need.devices if need is not None else 0)
    return ServerDemand(bare(spec.model_path), tuple(sorted(set(tags))), devices, spec.model_id)


def stated_bytes(spec: ModelSpec, devices: int) -> int | None:
    """Bytes the operator states for one replica on this many devices (0: unknown)."""
    if spec.placement.memory:
        return spec.placement.memory
    text = spec.overrides.get(f"{_RAM}{devices}", spec.overrides.get(_RAM))
    each = _bytes(text) if text is not None else None
    return int(each * devices) or None if each is not None else None


def loaded_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """The overrides a model server gets; changing any other reloads nothing."""
    return {key: text for key, text in overrides.items() if not OF_PLACEMENT.fullmatch(key)}


def check_placement(spec: ModelSpec) -> None:
    """Raises InvalidRequest, naming `placement` or `overrides`."""
    for tag in spec.placement.tags:
        if not tag.strip() or "," in tag or tag != tag.strip():
            raise InvalidRequest(
                f"{quoted(tag)} is not a valid tag: use a word without commas or surrounding "
                "spaces, as in the --tags of servers",
                param="placement",
            )
    for name, number in (("devices", spec.placement.devices), ("memory", spec.placement.memory)):
        if not 0 <= number <= _MOST:
            raise InvalidRequest(
                f"{number} {name} is out of range: use 0 (any) or more", param="placement"
            )
    for key, text in spec.overrides.items():
        if key == _CONSTRAINTS and _tags(text) is _UNREADABLE:
            raise InvalidRequest(
                f"override {key}={shortened(text)} is not a list of tags: use one JSON string with "
                'commas between the tags, as in "a100,fast"',
                param="overrides",
            )
        if key != _CONSTRAINTS and OF_PLACEMENT.fullmatch(key) and _bytes(text) is None:
            raise InvalidRequest(
                f"override {key}={shortened(text)} is not a number of bytes: give what one "
                "device needs, as in 16000000000",
                param="overrides",
            )


def bare(path: str) -> str:
    """The path without the prefix that Saxml lets operators omit."""
    return path.removeprefix(_SAXML_PREFIX)


def devices_of(info: ServerInfo) -> int:
    """Number of accelerators of a server; 0: unknown."""
    return info.devices or _devices_in(info.chip_topology)


@lru_cache(maxsize=4096)
def reserved_for(tags: tuple[str, ...]) -> frozenset[str]:
    """The only models allowed on a server with these tags; empty: any model."""
    return frozenset(tag.removeprefix(MODEL_TAG) for tag in tags if tag.startswith(MODEL_TAG))


@lru_cache(maxsize=4096)
def _bare_paths(paths: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(bare, paths))


@lru_cache(maxsize=1024)
def _devices_in(topology: str) -> int:
    """ "4x8" -> 32, "16" -> 16, "2x2x4_twisted" -> 16; 0 for any other text."""
    shape = topology.lower().removesuffix("_untwisted").removesuffix("_twisted")
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6}){0,3}", shape):
        return 0
    return math.prod(map(int, shape.split("x")))


_UNREADABLE: tuple[str, ...] = ("(unreadable constraints)",)  # a tag that no server has


def _tags(text: str) -> Iterable[str]:
    """The tags in a JSON string."""
    try:
        tags = msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        return _UNREADABLE
    return tuple(word.strip() for word in tags.split(",") if word.strip())


def _bytes(text: str) -> float | None:
    """The number in a JSON number or string; None if invalid."""
    try:
        number = float(msgspec.json.decode(text, type=str | float))
    except (msgspec.DecodeError, ValueError):
        return None
    return number if 0 < number <= _MOST else None
