"""Operations of a runner: steps, and between them ops, which are one tagged union. No jax.

A part of a runner brings the ops that it does (`RunnerPart`). What wraps a runner passes on
one method, `do`, and the hosts of a replica send each other ops as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from model_server.engine.limits import EngineLimits
from model_server.engine.media import EncodeBatch
from model_server.engine.types import SlotMask, Step, StepResult

Made = TypeVar("Made", covariant=True)


class Beginning(NamedTuple):
    """First position of the draft tokens of one sequence."""

    slot: int
    start: int  # position of its last token, which no step has computed yet
    token: int  # that token
    count: int  # draft tokens, of which the inputs have pages


class Proposals(NamedTuple):
    """Draft tokens of a draft model."""

    tokens: list[tuple[int, ...]]  # one tuple per beginning, of its count
    seconds: float  # from the question until they were on the host


class Choose(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Choose the tokens of the step launched last, which is guided; comes before the next."""

    masks: tuple[SlotMask, ...]


class Encode(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Launch a batch of an encoder; steps launched later see its vectors in their rows."""

    batch: EncodeBatch


class Propose(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Make draft tokens for all of these at once, one token after the other: `Proposals`.

    No step may be in flight. There are at most as many beginnings as the largest size has rows.
    """

    beginnings: tuple[Beginning, ...]


class ReadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Read an adapter, for a later WriteAdapter. Its result raises CheckpointError."""

    key: str
    path: str
    folder: str = ""  # below the path


class WriteAdapter(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Put an adapter that was read into its place, from 1 on; later steps see it there."""

    key: str
    place: int


class ForgetAdapter(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Drop an adapter that will not be written."""

    key: str


class ExportPages(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Offer a copy of the pages under the key; window_pages: () without such layers."""

    key: int
    pages: tuple[int, ...]
    window_pages: tuple[int, ...]


class ImportPages(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Fill the pages with those fetched under the key; `token` becomes the slot's last."""

    key: int
    pages: tuple[int, ...]
    window_pages: tuple[int, ...]
    slot: int
    token: int


class FetchPages(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Reserve memory for a prompt's pages, then fetch them from this host's counterpart.

    Raises Unavailable without room; its result raises DeadlineExceeded, ReplicaLost.
    """

    key: int
    pages: int
    window_pages: int  # pages of window layers
    addresses: tuple[str, ...]  # of every host of the other replica
    deadline_s: float


class DropPages(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Free the pages fetched or offered under a key, if there are any."""

    key: int


class Connect(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Connect a pipeline's host to the next one."""

    offers: tuple[str, ...]  # addresses of all hosts, in order


class ReadWeights(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Read weights for a later WriteWeights. Its result raises CheckpointError, MemoryPlanError."""

    key: str
    source: str  # see `loading.new_weights`
    partial: bool  # only those that are there


class WriteWeights(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Put weights that were read into place; a runner that sleeps wakes. No step is in flight."""

    key: str


class ForgetWeights(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Drop weights that will not be put into place."""

    key: str


class Sleep(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Free weights and pages until WriteWeights. No step is in flight, none may be launched."""


# Ops whose result is work, on the caller's thread, while steps go on. Hosts tell how it ended.
Awaited = ReadAdapter | FetchPages | Connect | ReadWeights
Op = (
    Choose
    | Encode
    | Propose
    | WriteAdapter
    | ForgetAdapter
    | ExportPages
    | ImportPages
    | DropPages
    | WriteWeights
    | ForgetWeights
    | Sleep
    | Awaited
)


class Pending(Protocol[Made]):
    """Result of a launch that may still run on the device."""

    def result(self) -> Made:
        """Wait for it, and return it from the host's memory."""
        ...


class Later(Generic[Made]):
    """Work that is done when its result is asked for."""

    def __init__(self, work: Callable[[], Made]) -> None:
        self.result = work


DONE: Pending[None] = Later(lambda: None)


class Runner(Protocol):
    """Runs steps. Hides one host or sixty-four, local or remote, real or fake.

    Steps run in launch order, and ops in theirs. Both calls return at once; at most two launches
    are in flight. It holds memory from its load to its close.
    """

    @property
    def limits(self) -> EngineLimits: ...

    @property
    def closed(self) -> bool:
        """True once its memory is free."""
        ...

    @property
    def ops(self) -> Mapping[type[Op], Mapping[int, float]]:
        """The ops that it does, and what each takes: seconds by rows, if `warm` measured any."""
        ...

    def launch(self, *steps: Step) -> Pending[Sequence[StepResult]]:
        """Launch a step, or `limits.steps_per_launch` decode steps of the same sequences."""
        ...

    def do(self, op: Op) -> Pending[Any]:
        """Do one of `ops`, between the steps launched before and those launched later."""
        ...

    @property
    def warmups(self) -> int:
        """Number of indices for `warm`: first one per bucket of steps."""
        ...

    def warm(self, index: int) -> None:
        """Run compiled programs once: the first run links them, which takes as long as many steps.

        Every host of a replica must do so, in the same order, before the first step.
        """
        ...

    def close(self) -> None:
        """Free device memory. No step may be launched afterwards."""
        ...


class Forwarding:
    """A runner around another one: passes everything on that a subclass does not override."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def limits(self) -> EngineLimits:
        return self._runner.limits

    @property
    def closed(self) -> bool:
        return self._runner.closed

    @property
    def ops(self) -> Mapping[type[Op], Mapping[int, float]]:
        return self._runner.ops

    def launch(self, *steps: Step) -> Pending[Sequence[StepResult]]:
        return self._runner.launch(*steps)

    def do(self, op: Op) -> Pending[Any]:
        return self._runner.do(op)

    @property
    def warmups(self) -> int:
        return self._runner.warmups

    def warm(self, index: int) -> None:
        self._runner.warm(index)

    def close(self) -> None:
        self._runner.close()
