"""What a run did and how long the cell was without a leader: told, never judged."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Loss:
    """A leader that was killed, paused or cut off, and that nobody has replaced yet."""

    how: str
    victim: str
    at_s: float
    calm: bool  # nothing else that changes wait for was in trouble meanwhile


@dataclass
class Figures:
    """Lives with one run."""

    clock: Callable[[], float]
    troubles: Counter[str] = field(default_factory=Counter[str])
    gaps: list[tuple[Loss, float]] = field(default_factory=list[tuple[Loss, float]])
    pending: list[Loss] = field(default_factory=list[Loss])

    def lost(self, how: str, victim: str, *, calm: bool) -> None:
        """The leader is gone from now on."""
        self.pending.append(Loss(how, victim, self.clock(), calm))

    def disturbed(self, by: str) -> None:
        """Something else goes wrong before there is another leader."""
        for loss in self.pending:
            loss.calm = loss.calm and loss.victim == by

    def back(self, victim: str) -> None:
        """It goes on: whoever acknowledges a change from now on may be itself."""
        self.pending = [x for x in self.pending if x.victim != victim or x.how == "kill"]

    def acknowledged(self, asked_s: float) -> None:
        """A change that was asked for at this time is done."""
        for loss in [one for one in self.pending if one.at_s < asked_s]:
            self.pending.remove(loss)
            self.gaps.append((loss, self.clock() - loss.at_s))

    def summary(self) -> dict[str, Any]:
        """Seconds from the loss of a leader to the next change that was acknowledged."""
        return {
            "troubles": dict(sorted(self.troubles.items())),
            **{f"gap_after_{how}_s": self._gaps_of(how) for how in ("kill", "pause", "cut")},
        }

    def _gaps_of(self, how: str) -> dict[str, Any]:
        calm = [gap for loss, gap in self.gaps if loss.how == how and loss.calm]
        other = [gap for loss, gap in self.gaps if loss.how == how and not loss.calm]
        return {"alone": _spread(calm), "among other trouble": _spread(other)}


def _spread(gaps: list[float]) -> dict[str, float]:
    if not gaps:
        return {"count": 0}
    median = statistics.median(gaps)
    return {"count": len(gaps), "median": round(median, 2), "max": round(max(gaps), 2)}
