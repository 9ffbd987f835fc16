"""KeptSpace: how much each key keeps here of responses and conversations, and how much it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sax.errors import InvalidRequest
from sax.storage.object_store import MeasuredStore

MEASURE_S = 300.0  # between two measurements; what other gateways add meanwhile is not counted


class KeptSpace:
    """Counts what this gateway writes, and all that is there whenever it is measured."""

    def __init__(
        self, store: MeasuredStore | None, folders: Sequence[str], most_bytes: int = 0
    ) -> None:
        """folders: each has a folder of every owner. most_bytes: of one owner; 0: any."""
        self._store = store
        self._folders = folders
        self._most_bytes = most_bytes
        self._used: Counter[str] = Counter()  # by owner

    async def measure(self) -> None:
        """Raises StoreUnavailable."""
        if self._store is None:
            return
        used: Counter[str] = Counter()
        for folder in self._folders:
            for name, size in (await self._store.sizes(folder)).items():
                used[name.split("/")[1]] += size
        self._used = used

    def has_room(self, owner: str) -> bool:
        return not self._most_bytes or self._used[owner] < self._most_bytes

    def add(self, owner: str, size: int) -> None:
        self._used[owner] += size

    def check(self, owner: str, param: str) -> None:
        """Raise InvalidRequest for an owner without room."""
        if self.has_room(owner):
            return
        whose = "callers without a key have" if owner == "everyone" else "this key has"
        raise InvalidRequest(
            f"the responses and conversations that {whose} stored here hold {self._used[owner]} "
            f"bytes, of the {self._most_bytes} of --max_key_bytes: delete some (DELETE "
            "/v1/responses/ID), send store: false, or ask the operators of this gateway for more",
            param=param,
        )
