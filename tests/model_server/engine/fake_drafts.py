"""Draft tokens of fake grammars and fake devices."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from model_server.engine.limits import EngineLimits
from model_server.engine.types import SlotMask, Step


class FakeDrafts:
    """What a fake state of a grammar tells of draft tokens: what a copy says behind each."""

    _ahead: list[bytes]

    def coming(self) -> tuple[int, ...]:
        state: Any = self
        return () if state.finished else state.forced()

    def draft(self, tokens: Sequence[int]) -> int:
        self._ahead = []
        state: Any = copy.deepcopy(self)
        for token in tokens:
            mask = state.mask()
            if mask is None or not bits_of(mask)[token] or not state.fits(token):
                break
            state.accept(token)
            if state.finished or (behind := copy.deepcopy(state).mask()) is None:
                break
            self._ahead.append(behind)
        return len(self._ahead)

    def drafted(self, count: int) -> bytes | None:
        return self._ahead[count - 1]


def bits_of(mask: bytes) -> np.ndarray:
    """u8[8 * bytes]: 1 for each token that a mask allows."""
    return np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")


def is_draft(step: Step, place: int) -> bool:
    """True if a row tries a draft token: the row before it is of the same sequence."""
    return place > 0 and step.rows[place - 1].sequence == step.rows[place].sequence


def masks_of_rows(
    limits: EngineLimits, step: Step, masks: Iterable[SlotMask]
) -> list[np.ndarray | None]:
    """The allowed tokens of each row of a step, as bits; None: all."""
    by_slot: Mapping[int, np.ndarray] = {mask.slot: bits_of(mask.allowed) for mask in masks}
    own = (
        limits.slots + 1 + place if is_draft(step, place) else row.slot
        for place, row in enumerate(step.rows)
    )
    return [by_slot.get(slot) for slot in own]
