"""Single-device arrays of other arrays, also of those that come later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from model_server.pathways.worker.arrays import Arrays
from model_server.pathways.worker.statuses import WrongRequest, fault_of
from model_server.pathways.worker.values import Arriving, Strings, There, Value


class ArrayPieces:
    """Takes apart what an executor holds, without waiting for it."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def replica(self, value: Value) -> Value:
        """Return a single-device array of a replicated one."""
        if isinstance(value, Arriving):
            return _derived(value, self._replica_there)
        return self._replica_there(value)

    def _replica_there(self, value: There) -> There:
        if isinstance(value, Strings):
            return Strings(value.data, 1)
        return self._arrays.replica(value) if isinstance(value, jax.Array) else value

    def parts(self, value: Value, count: int) -> Sequence[Value]:
        """Return the single-device arrays of a value. count: of those that it should have."""
        match value:
            case Strings(data, devices):
                return [Strings(data, 1)] * devices
            case Arriving():
                return self._parts_later(value, count)
            case jax.Array():
                return self._arrays.disassembled(value)
            case _:
                return [value] * count

    def _parts_later(self, coming: Arriving, count: int) -> Sequence[Value]:
        parts = [Arriving() for _ in range(count)]

        def come() -> None:
            try:
                found = self.parts(coming.get(), count)
                if len(found) != count:
                    raise WrongRequest(f"{count} handles for {len(found)} arrays")
            except Exception as exc:
                found = [fault_of(exc)] * count
            for part, value in zip(parts, found, strict=True):
                assert not isinstance(value, Arriving)
                part.set(value)

        coming.then(come)
        return parts


def _derived(coming: Arriving, how: Callable[[There], There]) -> Arriving:
    """Return what will be made of a value that comes."""
    made = Arriving()

    def come() -> None:
        try:
            made.set(how(coming.get()))
        except Exception as exc:
            made.set(fault_of(exc))

    coming.then(come)
    return made
