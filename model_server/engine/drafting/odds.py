"""Frequencies of right predictions, by how many in a row were right before. Pure.

Predictions are counted whether or not they were tried on the device: what they would have gained is
known without a try.
"""

from __future__ import annotations

_FIRST = (0.4, 0.5, 0.65, 0.8, 0.9)  # assumed of a model not seen yet: after 0, 1, 2, 4, 8 in a row
_OWN, _SHARED = 0.1, 0.01  # weight of one more prediction


class Odds:
    """Odds of one sequence, which begin as those of the sequences before it."""

    __slots__ = ("_first", "_rates", "_shared")

    def __init__(self, shared: Odds | None = None, first: tuple[float, ...] = _FIRST) -> None:
        """first: of one without others before it."""
        self._shared = shared
        self._first = shared._first if shared else first
        self._rates = list(shared._rates if shared else first)

    def note(self, run: int, right: bool) -> None:
        """Count a prediction that came after `run` right ones."""
        place = _place(run)
        self._rates[place] += _OWN * (right - self._rates[place])
        if self._shared is not None:
            rates = self._shared._rates
            rates[place] += _SHARED * (right - rates[place])

    def fade(self, weight: float) -> None:
        """Move towards what is assumed first: nothing was seen for a while."""
        for place, first in enumerate(self._first):
            self._rates[place] += weight * (first - self._rates[place])

    def of_runs(self, run: int, most: int) -> list[float]:
        """Return for 1, 2, ... further predictions the chance that all of them come true."""
        chance, chances = 1.0, []
        for more in range(most):
            chance *= self._rates[_place(run + more)]
            chances.append(chance)
        return chances


def _place(run: int) -> int:
    return min(run.bit_length(), len(_FIRST) - 1)
