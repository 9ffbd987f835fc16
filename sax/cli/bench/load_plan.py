"""The plan of a load: which requests, when and how many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sax.cli.bench.trace import read_trace
from sax.cli.bench.workload import PlannedRequest, RequestSizes, planned, poisson
from sax.errors import InvalidRequest
from sax.format import quoted

_REQUESTS = 64
_AT_ONCE = 8


class WorkloadKind(StrEnum):
    """Requests that `sax bench` can make."""

    RANDOM = "random"
    SHARED_PREFIX = "shared-prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The load that a command line asks for."""

    kind: WorkloadKind = WorkloadKind.RANDOM
    sizes: RequestSizes = RequestSizes()
    count: int | None = None
    rate: float | None = None
    at_once: int | None = None
    seed: int = 0
    trace: Path | None = None
    speed: float = 1.0

    @property
    def concurrency(self) -> int | None:
        """Requests at once; None: as many as come, each at its time."""
        timed = self.rate is not None or self.trace is not None
        return self.at_once if self.at_once is not None or timed else _AT_ONCE

    def requests(self) -> Sequence[PlannedRequest]:
        """Make the requests. Raises InvalidRequest for a trace that cannot be read."""
        if self.trace is None:
            made = planned(self.count or _REQUESTS, self._sizes, self.seed)
            return made if self.rate is None else poisson(made, self.rate, self.seed)
        if self.rate is not None:
            raise InvalidRequest(
                "a trace has its own times: give --speed, not --rate", param="rate"
            )
        try:
            with self.trace.open("rb") as lines:
                return read_trace(lines, self.seed, self.speed)[: self.count]
        except OSError as error:
            told = f"the trace {quoted(str(self.trace))} cannot be read: {error.strerror}"
            raise InvalidRequest(told, param="trace") from None

    def as_value(self) -> dict[str, Any]:
        """The plan as the report tells it."""
        if self.trace is not None:
            told: dict[str, Any] = {"trace": str(self.trace), "speed": self.speed}
        else:
            told = {"kind": str(self.kind), **asdict(self._sizes), "rate": self.rate}
        return {**told, "concurrency": self.concurrency, "seed": self.seed}

    @property
    def text(self) -> str:
        """The plan in a line."""
        if self.trace is not None:
            return f"trace {self.trace.name} at {self.speed:g} times its speed"
        sizes = self._sizes
        shared = f"{sizes.shared} shared + " if sizes.shared else ""
        pace = f"{self.rate:g} requests/s" if self.rate else f"{self.concurrency} at once"
        return f"{shared}{sizes.prompt} in, {sizes.tokens} out, {pace}, seed {self.seed}"

    @property
    def _sizes(self) -> RequestSizes:
        if self.kind is WorkloadKind.SHARED_PREFIX:
            return self.sizes
        own = self.sizes
        return RequestSizes(prompt=own.prompt, tokens=own.tokens, spread=own.spread)
