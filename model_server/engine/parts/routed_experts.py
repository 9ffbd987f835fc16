"""RoutedExperts: which experts each token of prompt and answer was sent to. Pure."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import msgspec
import numpy as np
from msgspec.structs import replace

from model_server.engine.limits import EngineLimits
from model_server.engine.part import EnginePart
from model_server.engine.request import EngineRequest, RouteRows, SequenceUpdate
from model_server.engine.sequence import Committing, Sequence
from model_server.engine.step_builder import StepBuilder
from model_server.engine.types import Row, RowResult
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.routed_experts import RoutedExpertIds

PARAM = "return_routed_experts"


class ShowRoutes(msgspec.Struct, frozen=True):
    """Setting of a request that wants the experts of its tokens."""


@dataclass
class _Shown:
    end: int = 0  # positions from here on were not taken yet
    rows: list[RouteRows] = field(default_factory=list[RouteRows])  # that no update has yet


class RoutedExperts(EnginePart[_Shown]):
    """Takes each position's experts when it is first computed with the token that stays there.

    The last token of all is never computed. What is computed again after a preemption was taken.
    """

    @classmethod
    def is_wanted(cls, limits: EngineLimits) -> bool:
        return limits.routed_experts

    @classmethod
    def check(cls, request: EngineRequest, limits: EngineLimits, context: int) -> None:
        if request.setting(ShowRoutes) is None:
            return
        if not limits.routed_experts:
            raise InvalidRequest(
                f"{PARAM}: this model was published without: publish it with "
                "RETURN_ROUTED_EXPERTS true, if it has experts",
                param=PARAM,
            )
        if request.beams is not None:
            raise UnsupportedParameter(
                f"a beam search has no {PARAM}: its hypotheses share what was computed",
                param=PARAM,
            )

    def begin(self, sequence: Sequence) -> _Shown | None:
        return None if sequence.request.setting(ShowRoutes) is None else _Shown()

    def reusable(self, sequence: Sequence, most: int) -> int:
        """Cached pages do not say which experts their tokens used, so compute those anew."""
        return min(most, self.of[sequence.id].end)

    def scheduled(self, step: StepBuilder) -> None:
        if self.of:
            step.rows = [
                replace(row, routes=True) if row.sequence in self.of else row for row in step.rows
            ]

    def commit(
        self, sequence: Sequence, row: Row, outcome: RowResult, committing: Committing
    ) -> bool:
        shown, end = self.of[sequence.id], row.start + row.count
        # A row that was launched behind a token that was then chosen anew counts for nothing.
        if outcome.routes is None or row.start >= len(sequence.tokens) or end <= shown.end:
            return False
        new = outcome.routes[max(shown.end - row.start, 0) :]
        shown.rows.append(RouteRows(end - len(new), new))
        shown.end = end
        return False

    def tell(self, sequence: Sequence, update: SequenceUpdate) -> SequenceUpdate:
        shown = self.of[sequence.id]
        rows, shown.rows = tuple(shown.rows), []
        return replace(update, routes=rows)


class ToldRoutes:
    """The experts of a sequence's tokens, from its updates."""

    def __init__(self) -> None:
        self._pieces: list[np.ndarray] = []
        self._end = 0

    def add(self, rows: Seq[RouteRows]) -> None:
        """Take in what an update has; another engine that goes on tells of all tokens again."""
        for start, experts in rows:
            if len(new := experts[self._end - start :]):
                self._pieces.append(new)
                self._end += len(new)

    def first(self, positions: int) -> np.ndarray:
        """Return u8 or u16[positions, L, k]. Raises AssertionError if some were not told."""
        assert self._end >= positions, f"the experts of {self._end} of {positions} tokens are known"
        return np.concatenate(self._pieces)[:positions]

    def encoded(self, positions: int) -> RoutedExpertIds:
        """As `first`, as a reply has them."""
        ids = self.first(positions)
        tokens, layers, experts = ids.shape
        data = ids.astype(ids.dtype.newbyteorder("<")).tobytes()
        return RoutedExpertIds(data, tokens, layers, experts, ids.dtype.itemsize)
