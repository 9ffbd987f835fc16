"""Pages of one model in transit on this host: exported from it or fetched for it.

Each host moves the shards of its own devices, one array per device, so nothing here talks to
another host of the same replica. Callers choose the keys.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import transfer

from model_server.disaggregation.handed_pages import PageAllowance, PageCount
from model_server.disaggregation.layer_set import Block, LayerSet
from sax.errors import Cancelled, DeadlineExceeded, Internal, ReplicaLost


class TransferServer:
    """This process's end of `jax.experimental.transfer`: one server, and connections to others.

    Starts with the first model that takes part. Any thread may call it.

    Findings (jaxlib 0.10, CPU): deleting an offered array frees it at once, even in the middle of a
    pull, and the puller gets an error. Pulling a key that is not offered, or from an address where
    nothing listens, waits forever. The timeouts of its own methods are checked only when something
    else happens. So offers are ended by deleting arrays, and pulls are polled.
    """

    def __init__(self, host: str) -> None:
        """host: this machine's name or address for the others."""
        self._host = host
        self._lock = threading.Lock()
        self._server: Any = None
        self._connections: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """host:port"""
        return self._started().address()

    def offer(self, key: int, arrays: Sequence[jax.Array]) -> None:
        """Let one other process pull the arrays, once; delete them to withdraw the offer."""
        self._started().await_pull(key, list(arrays))

    def pull(
        self, address: str, key: int, shapes: Sequence[jax.ShapeDtypeStruct]
    ) -> list[jax.Array]:
        """Return arrays that arrive later: poll `is_ready`."""
        with self._lock:
            connection = self._connections.get(address)
        if connection is None:
            connection = self._started().connect(address)
            with self._lock:
                self._connections[address] = connection
        return connection.pull(key, list(shapes))

    def lose(self, address: str) -> None:
        """Drop the connection; the next pull from there makes a new one."""
        with self._lock:
            self._connections.pop(address, None)

    def _started(self) -> Any:
        with self._lock:
            if self._server is None:
                host = socket.gethostbyname(self._host)
                client = jax.local_devices()[0].client
                self._server = transfer.start_transfer_server(client, f"{host}:0", [f"{host}:0"])
            return self._server


_POLL_S = 0.0005
# Number of offers dropped unfetched that stay registered, so that a late fetch gets an error.
_REMEMBERED = 64


@dataclass(slots=True)
class _Incoming:
    count: PageCount
    fetching: bool = False
    blocks: Sequence[Block] | None = None  # None: not arrived yet


class KvTransfers:
    """`Transfers` of one host. Any thread may call it."""

    def __init__(
        self,
        server: TransferServer,
        sets: Sequence[LayerSet],
        *,
        gives: bool,
        takes: bool,
        room: PageCount,  # pages that may be in transit to this host at once
        ordinal: int = 0,  # of this host
    ) -> None:
        """sets: the model's, and its draft model's, whose pages have the same numbers."""
        self.gives = gives
        self.takes = takes
        self._server = server
        self._sets = tuple(sets)
        self._ordinal = ordinal
        self._lock = threading.Lock()  # guards all below
        self._offered: dict[int, list[jax.Array]] = {}
        self._dropped: deque[tuple[int, list[jax.ShapeDtypeStruct]]] = deque()
        self._incoming: dict[int, _Incoming] = {}
        self._room = PageAllowance(room)
        # Abandoned pages that may still arrive
        self._late: list[tuple[PageCount, list[jax.Array]]] = []
        self._closed = False

    def addresses(self) -> Sequence[str]:
        return (self._server.address,)

    # Out

    def offer(self, key: int, blocks: Sequence[Block]) -> None:
        """Let the corresponding host of one other replica fetch the pages, set by set."""
        parts = [part for leaf in jax.tree.leaves(list(blocks)) for part in _local(leaf)]
        with self._lock:
            if self._closed:
                return
            self._offered[key] = parts
        self._server.offer(key, parts)

    @property
    def offered(self) -> int:
        """Bytes on this host waiting to be fetched."""
        with self._lock:
            return sum(part.nbytes for parts in self._offered.values() for part in parts)

    # In

    def reserve(self, key: int, count: PageCount) -> bool:
        with self._lock:
            self._reap()
            if self._closed or key in self._incoming or not self._room.take(count):
                return False
            self._incoming[key] = _Incoming(count)
            return True

    def fetch(self, key: int, addresses: Sequence[str], deadline_s: float) -> None:
        """Pull this host's shards and keep them under the same key.

        Raises DeadlineExceeded; ReplicaLost if they are gone; Cancelled if they were dropped.
        """
        with self._lock:
            coming = self._incoming.get(key)
            if coming is None:
                raise Cancelled("the pages were dropped before they were fetched")
            coming.fetching = True
        parts: list[jax.Array] = []
        try:
            shapes = [block for each in self._sets for block in each.blocks(coming.count)]
            parts = self._server.pull(addresses[self._ordinal], key, _all_local_shapes(shapes))
            self._await(parts, addresses[self._ordinal], deadline_s)
            blocks = _assembled(shapes, parts)
        except BaseException:
            self._fail(key, coming, parts)
            raise
        with self._lock:
            coming.fetching = False
            if self._incoming.get(key) is coming:
                coming.blocks = blocks
                return
            self._room.give_back(coming.count)
        _delete(parts)

    def take(self, key: int) -> Sequence[Block]:
        """Return the fetched pages, set by set. Raises Internal if there are none."""
        with self._lock:
            coming = self._incoming.pop(key, None)
            if coming is None or coming.blocks is None:
                raise Internal(f"a step imports pages that host {self._ordinal} did not fetch")
            self._room.give_back(coming.count)
        return coming.blocks

    # Both

    def drop(self, key: int) -> None:
        with self._lock:
            coming = self._incoming.pop(key, None)
            if coming is not None and not coming.fetching:
                self._room.give_back(coming.count)
            parts = self._offered.pop(key, [])
            if parts:
                self._dropped.append((key, [_shape(part) for part in parts]))
            drained = self._dropped.popleft() if len(self._dropped) > _REMEMBERED else None
        _delete(parts)
        if coming is not None:
            _delete(jax.tree.leaves(coming.blocks))
        if drained is not None:
            self._forget(*drained)

    def close(self) -> None:
        """Free everything; transfers still running are freed when they end."""
        with self._lock:
            self._closed = True
            keys = [*self._offered, *self._incoming]
        for key in keys:
            self.drop(key)

    def _forget(self, key: int, shapes: list[jax.ShapeDtypeStruct]) -> None:
        """Make the transfer server forget deleted arrays, which happens when they are pulled."""
        self._server.pull(self._server.address, key, shapes)

    def _await(self, parts: list[jax.Array], address: str, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        while not _arrived(parts):
            if time.monotonic() > deadline:
                self._server.lose(address)
                raise DeadlineExceeded(f"pages did not arrive from {address} in {deadline_s:.1f} s")
            time.sleep(_POLL_S)
        try:
            jax.block_until_ready(parts)
        except jax.errors.JaxRuntimeError as exc:
            self._server.lose(address)
            raise ReplicaLost(f"pages from {address} were lost in transit: {exc}") from exc

    def _fail(self, key: int, coming: _Incoming, parts: list[jax.Array]) -> None:
        """Keep the reservation of a failed pull, which may still write, until it has ended."""
        with self._lock:
            if self._incoming.get(key) is coming:
                del self._incoming[key]
            self._late.append((coming.count, parts))
            self._reap()

    def _reap(self) -> None:
        """Free the reservations of failed pulls that have ended. Call with the lock held."""
        late = []
        for count, parts in self._late:
            if _arrived(parts):
                self._room.give_back(count)
            else:
                late.append((count, parts))
        self._late = late


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def _devices(sharding: jax.sharding.Sharding) -> list[Any]:
    """Return this host's devices, in an order that both sides agree on."""
    return sorted(sharding.addressable_devices, key=lambda device: device.id)


def _arrived(parts: Sequence[Any]) -> bool:
    return all(part.is_ready() for part in parts)


def _local(array: jax.Array) -> list[jax.Array]:
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    return [shards[device] for device in _devices(array.sharding)]


def _local_shapes(leaf: jax.ShapeDtypeStruct) -> list[jax.ShapeDtypeStruct]:
    assert leaf.sharding is not None
    shape = leaf.sharding.shard_shape(leaf.shape)
    return [
        jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=jax.sharding.SingleDeviceSharding(device))
        for device in _devices(leaf.sharding)
    ]


def _all_local_shapes(shapes: Sequence[Block]) -> list[jax.ShapeDtypeStruct]:
    return [part for leaf in jax.tree.leaves(list(shapes)) for part in _local_shapes(leaf)]


def _assembled(shapes: Sequence[Block], parts: Sequence[jax.Array]) -> list[Block]:
    left = iter(parts)

    def whole(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        assert leaf.sharding is not None
        mine = [next(left) for _ in _devices(leaf.sharding)]
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, mine)

    return jax.tree.map(whole, list(shapes))


def _delete(arrays: Sequence[jax.Array]) -> None:
    for array in arrays:
        array.delete()
