"""Commands from the primary to the other hosts, and their answers.

The channel numbers commands, and every host performs them in that order. Anything that starts a
program in which hosts wait for each other must be a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from model_server.engine.media.encode_batch import EncodeBatch
from model_server.engine.types import EngineLimits, SlotMask, Step
from sax.types import ModelSpec


class LoadCommand(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Build this host's share of a model in the background, then vote."""

    servable: int  # identifies the model in later commands; never reused
    spec: ModelSpec
    limits: EngineLimits  # as the primary planned them


class ProgramCommand(msgspec.Struct, frozen=True, array_like=True, tag=2):
    servable: int
    name: str
    body: bytes | None  # None: each host compiles its own


class Warm(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Run a program once: the first run links it."""

    servable: int
    index: int


class Launch(msgspec.Struct, frozen=True, array_like=True, tag=4):
    servable: int
    step: Step


class Call(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Call a runner method in any order, and reply; arguments are msgpack values."""

    servable: int
    method: str
    arguments: Mapping[str, Any]
    background: bool = False  # in a thread, so that steps go on


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Free the model, or stop loading it."""

    servable: int


class Bye(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The replica shuts down: exit."""


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A host, and so the replica, is lost: exit to be restarted."""

    reason: str


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Fetch a prompt's pages from this host's counterpart in the background, then reply."""

    servable: int
    key: int
    pages: int
    addresses: tuple[str, ...]  # of every host of the other replica
    deadline_s: float
    near: int = 0  # pages of near layers


class DropPages(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Free the pages fetched or offered under a key."""

    servable: int
    key: int


class Perform(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Call a runner method in the order of the steps, without a reply."""

    servable: int
    method: str
    arguments: tuple[Any, ...]  # msgpack values


class Choose(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Choose the tokens of the step launched last, under these masks."""

    servable: int
    masks: tuple[SlotMask, ...]


class Encode(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Launch a batch of the encoder behind the step launched last."""

    servable: int
    batch: EncodeBatch


def fetching(key: int) -> str:
    """Return the call name used in replies to a Fetch."""
    return f"fetch {key}"


Command = (
    LoadCommand
    | ProgramCommand
    | Warm
    | Launch
    | Choose
    | Encode
    | Perform
    | Call
    | Drop
    | Bye
    | Lost
    | Fetch
    | DropPages
)


class HostBeat(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Heartbeat of a secondary."""

    ordinal: int
    done: int  # the last command it performed


class Vote(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A secondary's result of loading its share of a model."""

    ordinal: int
    servable: int
    reason: str  # empty: loaded
    error: str = ""  # class name of the SaxError
    need: str = ""  # memory that would have been enough, as `sax.need` formats it
    offer: str = ""  # address of this host's pipeline inlet, or of its exported pages


class CallReply(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A secondary's result of a Call."""

    ordinal: int
    servable: int
    call: str  # as the caller named it
    reason: str  # empty: it worked


class Leaving(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A secondary received SIGTERM: the whole replica drains."""

    ordinal: int


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A secondary exits: after a Bye, or with the reason why it cannot go on."""

    ordinal: int
    reason: str = ""


Answer = HostBeat | Vote | CallReply | Leaving | Gone

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
