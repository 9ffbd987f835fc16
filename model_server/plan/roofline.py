"""Minimum time of a step on a chip, and its bound.

A step computes, accesses memory and talks to other chips, at best all at once: the slowest of the
three is the minimum time (Williams et al. 2009, doi:10.1145/1498765.1498785). Program launches and
waits for the slowest chip are not included.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_server.plan.chips import Chip

BOUNDS = ("FLOPs", "HBM", "links")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Work of one device in one step."""

    flops: float
    bytes: float  # to and from HBM
    sent: float  # bytes to other chips


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Seconds that each of the three takes alone."""

    computing: float
    reading: float
    sending: float

    @property
    def seconds(self) -> float:
        return max(self.computing, self.reading, self.sending)

    @property
    def bound(self) -> str:
        """FLOPs, HBM or links."""
        times = (self.computing, self.reading, self.sending)
        return BOUNDS[times.index(max(times))]


def roofline(load: DeviceWork, chip: Chip) -> Roofline:
    """Return the times of one step on one device of this chip."""
    return Roofline(
        computing=load.flops / chip.device_flops,
        reading=load.bytes / chip.device_hbm_rate,
        sending=load.sent / chip.device_link_rate,
    )
