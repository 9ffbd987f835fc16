"""KV page transfers of one model on all hosts of a replica, as the primary sees them.

Each host moves the shards of its own devices. Pages are exported and imported between steps, by the
runner; fetching and dropping are not bound to steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from model_server.disaggregation.handed_pages import PageCount
from model_server.disaggregation.kv_transfers import KvTransfers
from model_server.engine.running.ops import DropPages, FetchPages
from model_server.multihost.commands import Do
from model_server.multihost.primary import Primary
from sax.errors import ReplicaLost, SaxError

_GRACE_S = 5.0  # beyond the deadline of a fetch, for its reply to arrive


class GangTransfers:
    """`KvTransfers` across all hosts. Any thread may call it."""

    def __init__(
        self, own: KvTransfers, hosts: Primary, servable: int, offers: Sequence[str]
    ) -> None:
        """offers: address of each host's pages, in host order."""
        self.gives, self.takes = own.gives, own.takes
        self._own = own
        self._hosts = hosts
        self._servable = servable
        self._offers = offers
        self._counts: dict[int, PageCount] = {}  # reserved, by key

    def addresses(self) -> Sequence[str]:
        return self._offers

    def reserve(self, key: int, count: PageCount) -> bool:
        # The other hosts have the same memory free; they reserve when the fetch command arrives.
        if not self._own.reserve(key, count):
            return False
        self._counts[key] = count
        return True

    def fetch(self, key: int, addresses: Sequence[str], deadline_s: float) -> None:
        """Fetch on every host. Raises the local error, or ReplicaLost with a host's reason."""
        count = self._counts.pop(key, PageCount(0))
        op = FetchPages(key, count.pages, count.window_pages, tuple(addresses), deadline_s)
        number = self._hosts.ask(self._servable, op)
        failure: SaxError | None = None
        try:
            self._own.fetch(key, addresses, deadline_s)
        except SaxError as error:
            failure = error
        for reply in self._hosts.replies(number, deadline_s + _GRACE_S):
            if reply.reason and failure is None:
                failure = ReplicaLost(f"{self._hosts.name(reply.ordinal)}: {reply.reason}")
        if failure is not None:
            self.drop(key)
            raise failure

    def drop(self, key: int) -> None:
        self._counts.pop(key, None)
        self._own.drop(key)
        if self._hosts.lost is None:
            self._hosts.publish(Do(self._servable, DropPages(key)))
