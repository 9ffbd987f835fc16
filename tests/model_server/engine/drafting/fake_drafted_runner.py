"""A FakeRunner with a draft model: the same arithmetic over pages of its own, sometimes wrong.

Its memory must hold what the model's own holds wherever a draft token begins: a page that was
shared, copied or granted without its knowledge would show.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import numpy as np

from model_server.engine.buckets import closed_set
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Beginning, Later, Op, Pending, Proposals, Propose
from tests.model_server.engine.fake_runner import VOCAB, FakeRunner, next_token


class FakeDraftedRunner(FakeRunner):
    """Drafts what a greedy sequence gets, but for a share of wrong tokens."""

    def __init__(
        self, limits: EngineLimits, *, wrong: float = 0.0, seed: int = 0, token_s: float = 0.01
    ) -> None:
        super().__init__(limits)
        self.asked = 0  # draft tokens made
        self._token_s = token_s
        self._wrong = wrong
        self._random = random.Random(seed)
        self._drafted = self._pages.memory.copy()

    @property
    def ops(self) -> Mapping[type[Op], Mapping[int, float]]:
        rows = closed_set(self.limits.decodes, ())
        return {**super().ops, Propose: {each.decodes: self._token_s for each in rows}}

    def do(self, op: Op) -> Pending[Any]:
        """Draft tokens are made when they are read: on the first of several hosts alone."""
        return Later(partial(self.propose, op)) if isinstance(op, Propose) else super().do(op)

    def propose(self, op: Propose) -> Proposals:
        assert not self.in_flight, "a draft token depends on the step in flight"
        depth = max(each.count for each in op.beginnings)
        return Proposals(
            [self._draft_tokens(each) for each in op.beginnings], depth * self._token_s
        )

    def _draft_tokens(self, beginning: Beginning) -> tuple[int, ...]:
        slot, start, token, count = beginning
        assert count > 0, "no draft token was wanted"
        seen: list[int] = self._drafted[self._pages.tables[slot]].reshape(-1)[:start].tolist()
        # Pages before the window may be others' by now, or its own at other positions.
        first = max(0, start + 1 - (self.limits.windows.every or start + 1))
        assert seen[first:] == self._pages.read(slot, start)[first:], "it missed a step"
        made: list[int] = []
        for position in range(start, start + count):
            self._drafted[self._pages.place(slot, position)] = token
            seen.append(token)
            token = next_token(seen, window=self.limits.windows.every)
            if self._random.random() < self._wrong:
                token = self._random.randrange(VOCAB)
            made.append(token)
        self.asked += count
        return tuple(made)

    def _write(self, slot: int, position: int, token: int, long: bool) -> None:
        super()._write(slot, position, token, long)
        self._drafted[self._pages.place(slot, position)] = token

    def _copy(self, copies: Seq[tuple[int, ...]]) -> None:
        super()._copy(copies)
        sources, targets = [pair[0] for pair in copies], [pair[1] for pair in copies]
        self._drafted[targets] = np.array(self._drafted[sources])
