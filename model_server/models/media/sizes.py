"""Numbers of pieces that programs of an encoder are compiled for."""

from __future__ import annotations

_LEAST = 1024


def doubling(most: int, step: int, least: int = _LEAST) -> tuple[int, ...]:
    """Return multiples of `step`, each about twice the one before, up to the first from `most`."""
    sizes = [_up(most, step)]
    while sizes[0] > least:
        half = _up(sizes[0] // 2, step)
        if half == sizes[0]:
            break
        sizes.insert(0, half)
    return tuple(sizes)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
