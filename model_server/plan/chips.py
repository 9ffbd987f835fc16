"""Memory, bandwidth and compute of each TPU chip, for the roofline, each with its source.

Link rates are those of all links of a chip, one way. Google's pages give some of them both ways;
those are halved here.
"""

from __future__ import annotations

from dataclasses import dataclass

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
