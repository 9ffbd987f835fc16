"""Islands: groups of devices that one program may span.

A proxy server has any number of them; without one, all devices of a replica are one island.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from model_server.islands.proxy_backend import BACKEND, is_proxied
from sax.errors import InvalidRequest, Unavailable


def islands() -> Mapping[int, Sequence[Any]]:
    """Return the devices of each island, by its number.

    Raises Unavailable if an island that was named is not there.
    """
    if not is_proxied():
        return {0: jax.devices()}
    found: dict[int, list[Any]] = {}
    for device in jax.devices():
        found.setdefault(getattr(device, "slice_index", 0), []).append(device)
    if missing := set(BACKEND.chosen) - found.keys():
        raise Unavailable(
            f"the proxy server has no island {min(missing)}: name some of {sorted(found)} with "
            "--islands"
        )
    return {number: found[number] for number in BACKEND.chosen or sorted(found)}


Copy = tuple[int, ...]  # the islands that hold one copy of a model: one per stage


def copies(stages: int) -> list[Copy]:
    """Divide the islands, in order, among copies of a model with this many stages.

    Raises InvalidRequest if they are too few for one, Unavailable as `islands` does.
    """
    numbers = list(islands())
    if len(numbers) < stages:
        raise InvalidRequest(
            f"NUM_STAGES is {stages} and there are {len(numbers)} islands: give at most one stage "
            "per island, or start more islands",
            param="overrides.NUM_STAGES",
        )
    firsts = range(0, len(numbers) - stages + 1, stages)
    return [tuple(numbers[first : first + stages]) for first in firsts]


def copy_name(copy: Copy) -> str:
    return "+".join(map(str, copy))


def island_devices() -> Sequence[Any]:
    """Return the devices that a model spans by default: those of the first island."""
    return next(iter(islands().values()))


def told_limit(device: Any) -> int | None:
    """Return the bytes that a proxy server's device may hold; None: jax knows it here."""
    return getattr(device, "memory_limit_bytes", None) if is_proxied() else None


def answers(island: int) -> bool:
    """Return False while an island is lost; connects again if the proxy server was."""
    try:
        BACKEND.reconnect()
        device = islands()[island][0]
        jax.device_put(np.int32(1), device).block_until_ready()
    except (RuntimeError, KeyError, Unavailable):  # jax's errors are RuntimeErrors
        return False
    return True
