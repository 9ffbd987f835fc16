"""Programs that clients hold on an island: what to compile when it returns."""

from __future__ import annotations

from collections.abc import Iterable

from model_server.pathways.islands.host import Errand


class HeldPrograms:
    """Requests to compile, in their order, by session and the handle of their program."""

    def __init__(self) -> None:
        self._errands: dict[tuple[int, int], Errand] = {}

    def __len__(self) -> int:
        return len(self._errands)

    def note(self, handle: int, errand: Errand) -> None:
        self._errands[errand.session, handle] = errand

    def drop(self, session: int, handles: Iterable[int]) -> None:
        for handle in handles:
            self._errands.pop((session, handle), None)

    def forget(self, session: int) -> None:
        for key in [key for key in self._errands if key[0] == session]:
            del self._errands[key]

    def errands(self) -> list[tuple[int, Errand]]:
        """Return (handle, request); under the same first handles they make the same handles."""
        return [(handle, errand) for (_, handle), errand in self._errands.items()]
