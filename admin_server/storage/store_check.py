"""A startup check that a store can be trusted with the log.

Some S3 servers treat a create-if-absent as a plain write and report success: two admin servers
would then overwrite each other's records, and neither would ever be deposed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from admin_server.condition import ChangeSignal
from sax.errors import InvalidRequest, SaxError, StateLost
from sax.names import CellId
from sax.storage.object_store import ObjectExists, ObjectStore, StoreReplaced, StoreUnavailable

_log = logging.getLogger(__name__)


class StoreHealth:
    """The outcome of the last write. Lives on the event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.trouble = ""  # the last failure; empty while writes succeed
        self.since_s: float | None = None  # time of the first failure in a row
        self.failures = 0  # total
        self.replaced = False  # the store is not the one it was, or has lost records
        self.foreign: tuple[str, ...] = ()  # objects of the cell that no admin server wrote
        self.changed = ChangeSignal()  # posted when the store begins to fail and when it recovers

    @property
    def failing(self) -> bool:
        """True if a change would probably be refused now."""
        return self.since_s is not None

    @property
    def warnings(self) -> list[str]:
        """Conditions that need an operator, but refuse no change yet."""
        more = len(self.foreign) - _NAMED
        named = ", ".join(self.foreign[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        if not named:
            return []
        return [f"foreign to this cell: {named}; move them elsewhere, or no admin server can start"]

    def succeeded(self) -> None:
        if self.since_s is not None:
            _log.warning("the store works again after %.1f s", self._clock() - self.since_s)
            self.trouble, self.since_s, self.replaced = "", None, False
            self.changed.post()

    def failed_by(self, exc: SaxError) -> None:
        """Record what ended a write, or a look at the store."""
        self.failed(exc.text, replaced=isinstance(exc, StoreReplaced | StateLost))

    def failed(self, why: str, *, replaced: bool = False) -> None:
        """Record a failed write, or one with unknown outcome."""
        self.failures += 1
        self.trouble, self.replaced = why, replaced
        if self.since_s is None:
            _log.warning("changes cannot be made durable: %s", why)
            self.since_s = self._clock()
            self.changed.post()

    def found(self, foreign: tuple[str, ...]) -> None:
        """Record the foreign objects that were found in the store."""
        for name in sorted({*foreign} - {*self.foreign}):
            _log.error("%s is foreign: move it elsewhere, or no admin server can start", name)
        self.foreign = foreign


_NAMED = 5  # foreign objects named in a warning


async def check_creates_once(store: ObjectStore, cell: CellId) -> None:
    """Raises InvalidRequest if the store creates an object twice, StoreUnavailable."""
    name = f"{str(cell).strip('/')}/probes/{uuid.uuid4().hex}"
    await _create(store, name, b"first")
    twice = await _create(store, name, b"second")
    try:
        await store.delete([name])
    except StoreUnavailable as exc:
        # Harmless: a few bytes stay. If deletes fail for good, compaction will report it.
        _log.warning("could not delete %s: %s", name, exc.text)
    if twice:
        raise InvalidRequest(
            "the store of --fs_root ignores create-if-absent (If-None-Match: *): it created "
            f"the object {name} twice, so it cannot keep two admin servers apart and would lose "
            "published models; use one that honours it, such as Amazon S3, Google Cloud Storage, "
            "Azure, MinIO, SeaweedFS or a local folder",
            param="fs_root",
        )


async def _create(store: ObjectStore, name: str, data: bytes) -> bool:
    """True if created now; a backend that retries may find its own first try."""
    try:
        await store.create(name, data)
    except ObjectExists:
        return False
    return True
