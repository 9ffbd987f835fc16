"""Commands from the primary to the other hosts, and their answers.

The channel numbers commands, and every host performs them in that order. Anything that starts a
program in which hosts wait for each other must be a command: most are ops of a runner.
"""

from __future__ import annotations

import msgspec

from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Op
from model_server.engine.types import Step
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
    steps: tuple[Step, ...]


class Do(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Have a model's runner do an op, in the order of the steps."""

    servable: int
    op: Op
    reply: int = 0  # for an `Awaited` op: the number to reply with, once its result is there


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Free the model, or stop loading it."""

    servable: int


class Bye(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The replica shuts down: exit."""


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """A host, and so the replica, is lost: exit to be restarted."""

    reason: str


Command = LoadCommand | ProgramCommand | Warm | Launch | Do | Drop | Bye | Lost


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


class OpReply(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """How an op that is awaited ended on a secondary."""

    ordinal: int
    number: int  # as in `Do.reply`
    reason: str  # empty: it worked


class Leaving(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A secondary received SIGTERM: the whole replica drains."""

    ordinal: int


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A secondary exits: after a Bye, or with the reason why it cannot go on."""

    ordinal: int
    reason: str = ""


Answer = HostBeat | Vote | OpReply | Leaving | Gone

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
