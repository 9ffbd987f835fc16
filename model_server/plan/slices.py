"""Names of TPU slices, such as v5e:4x8, and of CPUs; parsed before jax is imported."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from model_server.plan.chips import ALIASES, CHIPS, Chip
from sax.errors import InvalidRequest
from sax.names import nearest
from sax.slices import GENERATIONS

_PARAM = "topology"
_NAME = re.compile(r"([a-z][a-z0-9_-]*?)[:=_](\d+(?:x\d+)*)")
_COUNTED = re.compile(r"([a-z][a-z0-9_-]*?)-(\d+)")  # v5litepod-32: a number of chips
_CPU = re.compile(r"cpu(?::([1-9]\d{0,2}))?")
_MOST_CHIPS = 2**14  # far above any slice; a typo would keep the compiler busy for ever

# Slices of Google Cloud, smallest first: https://cloud.google.com/tpu/docs/ and each chip's page.
LENT = {
    "v2": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "v3": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
    **{each.chip: each.sizes for each in GENERATIONS.values()},
}


@dataclass(frozen=True, slots=True)
class SliceName:
    """A chip and the number of chips in each direction."""

    chip: Chip
    size: str  # 4x8

    def __str__(self) -> str:
        return f"{self.chip.name}:{self.size}"

    @property
    def chips(self) -> int:
        return chips_of(self.size)

    @property
    def is_lent(self) -> bool:
        """True if Google Cloud offers the slice; the compiler accepts others too."""
        return self.size in LENT[self.chip.name]

    @property
    def for_compiler(self) -> str:
        return f"{self.chip.compiler_name}:{self.size}"


def parse_slice(text: str) -> SliceName:
    """Parse v5e:4x8 and its like. Raises InvalidRequest with the nearest names."""
    found = _NAME.fullmatch(text.strip().lower())
    if found is None:
        raise _unreadable(text)
    name = SliceName(parse_chip(found[1], found[2]), found[2])
    if not 0 < name.chips <= _MOST_CHIPS:
        raise InvalidRequest(
            f"topology {text} has {name.chips} chips; nearest: {_listed(nearby(name))}",
            param=_PARAM,
        )
    return name


def parse_chip(text: str, size: str = "") -> Chip:
    """Parse v5e or an alias. Raises InvalidRequest with the nearest names."""
    word = text.strip().lower()
    if found := CHIPS.get(ALIASES.get(word, word)):
        return found
    close = nearest(word, {**CHIPS, **ALIASES})
    if size:
        close = [f"{name}:{_fitting(name, size)}" for name in close]
    raise InvalidRequest(
        f"no TPU is called {text!r}; nearest: {_listed(close or list(CHIPS))}; there are "
        f"{', '.join(CHIPS)}",
        param=_PARAM if size else "chip",
    )


def cpu_devices(topology: str) -> int | None:
    """Parse cpu or cpu:2 to a number of devices; None if it is something else.

    Raises InvalidRequest.
    """
    word = topology.strip().lower()
    found = _CPU.fullmatch(word)
    if found is None and re.fullmatch(r"cpu\W.*", word):
        raise InvalidRequest(
            f"topology {topology!r}: write cpu, or cpu:N for N devices of one host",
            param="topology",
        )
    return None if found is None else int(found[1] or 1)


def nearby(name: SliceName, limit: int = 3) -> list[str]:
    """Return available slices of the same chip, nearest in size first."""

    def distance(size: str) -> float:
        return abs(math.log(chips_of(size) / max(name.chips, 1)))

    sizes = sorted(LENT[name.chip.name], key=distance)
    return [f"{name.chip.name}:{size}" for size in sizes[:limit]]


def chips_of(size: str) -> int:
    """Return the number of chips: 32 for 4x8."""
    return math.prod(map(int, size.split("x")))


def _fitting(chip: str, size: str) -> str:
    """Return the size if the chip comes in it, else its smallest."""
    sizes = LENT[ALIASES.get(chip, chip)]
    return size if size in sizes else sizes[0]


def _unreadable(text: str) -> InvalidRequest:
    word = text.strip().lower()
    if counted := _COUNTED.fullmatch(word):
        chip = parse_chip(counted[1], counted[2])
        name = SliceName(chip, str(int(counted[2])))
        hint = f"give their shape: {_listed(nearby(name))}"
    elif chip := CHIPS.get(ALIASES.get(word.rstrip(":"), word.rstrip(":"))):
        hint = f"add a size: {', '.join(f'{chip.name}:{size}' for size in LENT[chip.name])}"
    else:
        hint = "write CHIP:SIZE, as v5e:4x8, v5p:2x2x4, or auto"
        if ":" in word:
            parse_chip(
                word.partition(":")[0], "1x1"
            )  # raises the clearer error for an unknown chip
    return InvalidRequest(f"topology {text!r} is not the name of a slice: {hint}", param=_PARAM)


def _listed(names: list[str]) -> str:
    return ", ".join(names)
