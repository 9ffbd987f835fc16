"""Messages between the resource manager, workers and proxy servers."""

from __future__ import annotations

import msgspec

ANY = -1


class Enrol(msgspec.Struct, frozen=True, tag="enrol"):
    """A worker's first message to the resource manager, after every connection."""

    incarnation: str  # of the process
    address: str  # host:port for proxy servers and other workers
    island: int = ANY  # ANY: the manager chooses
    host: int = 0  # within the island
    hosts: int = 1  # of the island
    coordinator: str = ""  # host 0: where jax's coordination service will be
    started: bool = False  # its devices are numbered: it cannot become another host


class IslandPlacement(msgspec.Struct, frozen=True, tag="placed"):
    """All hosts of an island have enrolled: what to start as."""

    island: int
    first_device: int
    devices: int  # of this host; 0: as many as it has
    platform: str  # "cpu", "tpu", "gpu"; "": any
    coordinator: str


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """Wait for the workers that the text names."""

    text: str


class TurnedAway(msgspec.Struct, frozen=True, tag="turned_away"):
    """End with this reason."""

    reason: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A worker's devices are there and it listens."""

    devices: int


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """A heartbeat of a worker or proxy server."""


class Trouble(msgspec.Struct, frozen=True, tag="trouble"):
    """An error for the one place where errors are shown."""

    text: str


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """A proxy server's first message: it asks for the islands."""

    name: str


class IslandLine(msgspec.Struct, frozen=True):
    """An island as proxy servers and the status page see it."""

    island: int
    up: bool
    addresses: list[str]  # of its hosts, in their order
    incarnations: list[str]
    devices: int
    since: float  # seconds since the epoch
    note: str  # why it is not up


class Islands(msgspec.Struct, frozen=True, tag="islands"):
    """Islands as they are now."""

    expected: int
    lines: list[IslandLine]  # of islands that are known


class ClientLine(msgspec.Struct, frozen=True):
    """A client of a proxy server."""

    session: int
    name: str
    weight: float
    requests: int
    handles: int
    buffer_bytes: int
    stored_bytes: int  # that it ever sent
    waiting: int
    paused: bool


class Clients(msgspec.Struct, frozen=True, tag="clients"):
    """A proxy server's clients; also its heartbeat."""

    lines: list[ClientLine]


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Hold a client's requests back, or let them go on."""

    session: int
    paused: bool


Message = (
    Enrol
    | IslandPlacement
    | Missing
    | TurnedAway
    | Ready
    | Alive
    | Trouble
    | Watch
    | Islands
    | Clients
    | Pause
)
DECODER = msgspec.msgpack.Decoder(Message)
