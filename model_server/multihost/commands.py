"""What the primary tells the other hosts, and what they answer. Plain values that travel.

Commands are numbered by the channel and performed in that order on every host; whatever starts a
program in which hosts wait for each other is a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from model_server.engine.types import EngineLimits, Step
from sax.types import ModelSpec


class Load(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Build your share of a model, beside what else you do, and vote on it."""

    servable: int  # names the model in later commands; never used twice
    spec: ModelSpec
    limits: EngineLimits  # as the primary planned them


class Program(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A compiled program of a model that is being loaded."""

    servable: int
    name: str
    body: bytes | None  # None: compile it yourself


class Warm(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Run an empty step of this bucket: the first run of a program links it."""

    servable: int
    bucket: int


class Launch(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Run a step."""

    servable: int
    step: Step


class Call(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Call a method of the model's runner that is no step; msgpack of its arguments."""

    servable: int
    method: str
    arguments: Mapping[str, Any]


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Free the model, or stop loading it."""

    servable: int


class Bye(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The replica ends: leave."""


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A host is lost, and the replica with it: leave for a new start."""

    reason: str


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Fetch a prompt's pages from this host's counterpart, beside what else you do; then reply."""

    servable: int
    key: int
    pages: int
    addresses: tuple[str, ...]  # of every host of the other replica
    deadline_s: float


class DropPages(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Free what is fetched or offered under a key."""

    servable: int
    key: int


def fetching(key: int) -> str:
    """What a reply to a Fetch is called."""
    return f"fetch {key}"


Command = Load | Program | Warm | Launch | Call | Drop | Bye | Lost | Fetch | DropPages


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A sign of life of a secondary."""

    ordinal: int
    done: int  # the last command it performed


class Vote(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A secondary has its share of a model, or says why not."""

    ordinal: int
    servable: int
    reason: str  # empty: it has
    error: str = ""  # name of the SaxError
    need: str = ""  # what would have been enough room, as `sax.need` writes it
    offer: str = ""  # address of this host's end of a pipeline


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """What a Call came to on a secondary."""

    ordinal: int
    servable: int
    call: str  # as the caller named it
    reason: str  # empty: it worked


class Leaving(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A secondary was told to stop (SIGTERM): the whole replica drains."""

    ordinal: int


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A secondary leaves: after a Bye, or because it cannot go on, with the reason."""

    ordinal: int
    reason: str = ""


Answer = Beat | Vote | Reply | Leaving | Gone

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
