"""TPU chips and the slices made of them, such as v5e:4x8; parsed before jax is imported.

Memory, bandwidth and compute of each chip are for the roofline, each with its source. Link rates
are those of all links of a chip, one way. Google's pages give some of them both ways; those are
halved here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sax.errors import InvalidRequest
from sax.names import nearest
from sax.slices import GENERATIONS

_PAGES = "https://cloud.google.com/tpu/docs/"
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One generation of chips. A chip has 1 or 2 devices, on which programs run."""

    name: str  # as in v5e:4x8
    compiler_name: str  # libtpu's name for it, before the colon
    devices: int  # jax devices per chip
    hbm: int  # bytes
    usable: int  # bytes per device that the compiler lets a program use
    hbm_rate: float  # bytes per second
    bf16_rate: float  # FLOP per second
    int8_rate: float | None  # operations per second; None: no faster than bf16
    link_rate: float  # bytes per second to other chips, one way, over all links
    source: str

    @property
    def device_hbm_rate(self) -> float:
        return self.hbm_rate / self.devices

    @property
    def device_flops(self) -> float:
        """FLOP per second of one device in bf16, to which weights of every form are widened."""
        return self.bf16_rate / self.devices

    @property
    def device_link_rate(self) -> float:
        return self.link_rate / self.devices

    @property
    def ridge(self) -> float:
        """FLOP per byte above which a step is bound by FLOPs."""
        return self.bf16_rate / self.hbm_rate


# `usable`: libtpu 0.0.52 was given a program with 2 TiB of temporaries for one device of each; its
# error says how much is available ("exceeds available HBM (15.75G)"). A test repeats this.
_CHIPS = (
    Chip(
        name="v2",
        compiler_name="v2",
        devices=2,
        hbm=16 * _GIB,
        usable=int(7.48 * _GIB),
        hbm_rate=700e9,
        bf16_rate=46e12,
        int8_rate=None,
        link_rate=248e9,
        source=f"{_PAGES}v2; links: Jouppi et al. 2020, doi:10.1145/3360307 (4 of 496 Gbit/s)",
    ),
    Chip(
        name="v3",
        compiler_name="v3",
        devices=2,
        hbm=32 * _GIB,
        usable=int(15.48 * _GIB),
        hbm_rate=900e9,
        bf16_rate=123e12,
        int8_rate=None,
        link_rate=328e9,
        source=f"{_PAGES}v3; links: Jouppi et al. 2020, doi:10.1145/3360307 (4 of 656 Gbit/s)",
    ),
    Chip(
        name="v4",
        compiler_name="v4",
        devices=1,
        hbm=32 * _GIB,
        usable=int(30.75 * _GIB),
        hbm_rate=1228e9,
        bf16_rate=275e12,
        int8_rate=275e12,
        link_rate=300e9,
        source=f"{_PAGES}v4; links: Jouppi et al. 2023, arXiv:2304.01433 (6 of 50 GB/s)",
    ),
    Chip(
        name="v5e",
        compiler_name="v5e",
        devices=1,
        hbm=16 * _GIB,
        usable=int(15.75 * _GIB),
        hbm_rate=819e9,
        bf16_rate=197e12,
        int8_rate=394e12,
        link_rate=200e9,
        source=f"{_PAGES}v5e",
    ),
    Chip(
        name="v5p",
        compiler_name="v5p",
        devices=1,
        hbm=96 * _GIB,
        usable=int(95.73 * _GIB),
        hbm_rate=2765e9,
        bf16_rate=459e12,
        int8_rate=918e12,
        link_rate=600e9,
        source=f"{_PAGES}v5p",
    ),
    Chip(
        name="v6e",
        compiler_name="v6e",
        devices=1,
        hbm=32 * _GIB,
        usable=int(31.24 * _GIB),
        hbm_rate=1640e9,
        bf16_rate=918e12,
        int8_rate=1836e12,
        link_rate=400e9,
        source=f"{_PAGES}v6e",
    ),
    Chip(
        name="v7x",
        compiler_name="tpu7x",
        devices=2,
        hbm=192 * _GIB,
        usable=int(94.74 * _GIB),
        hbm_rate=7380e9,
        bf16_rate=2307e12,
        int8_rate=None,
        link_rate=600e9,
        source=f"{_PAGES}tpu7x",
    ),
)
CHIPS = {chip.name: chip for chip in _CHIPS}
# Other names in use: Google Cloud, Kubernetes, libtpu, and Saxml's --platform_chip.
ALIASES = {
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "tpu-v5-lite-podslice": "v5e",
    "tpu-v5-lite-device": "v5e",
    "tpu-v4-podslice": "v4",
    "tpu-v5p-slice": "v5p",
    "tpu-v6e-slice": "v6e",
    "trillium": "v6e",
    "tpu7x": "v7x",
    "tpu-v7x-slice": "v7x",
    "v7": "v7x",
    "ironwood": "v7x",
    **{f"tpu{name}": name for name in CHIPS},
}

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
