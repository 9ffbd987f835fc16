"""A part: a feature of the engine with a state of its own, which the core calls at fixed points.

The core knows sequences, slots, pages, rows and steps. What else requests may ask for, or a model
may need, is a part: a subclass of `EnginePart` in one file, and one line in `registry`. A part
keeps what it knows of a sequence by its id; the core calls its `SequenceHooks` only for sequences
that it concerns. Hooks of one kind are called in the order of the registry.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from model_server.engine.hooks import SequenceHooks
from model_server.engine.limits import EngineLimits
from model_server.engine.live_sequences import LiveSequences
from model_server.engine.request import EngineRequest, SequenceUpdate
from model_server.engine.running.ops import Op
from model_server.engine.sequence import Sequence
from model_server.engine.step_builder import StepBuilder
from model_server.engine.step_times import StepTimes
from model_server.engine.types import SlotMask, Step

State = TypeVar("State")


class EnginePart(SequenceHooks[Sequence], Generic[State]):
    """Every hook does nothing unless it is overridden. State: what it keeps of a sequence."""

    live: LiveSequences
    limits: EngineLimits
    times: StepTimes | None  # of the runner's steps

    def __init__(self) -> None:
        self.of: dict[int, State] = {}  # by sequence

    def join(self, live: LiveSequences, times: StepTimes | None) -> None:
        """Begin to work in a scheduler."""
        self.live, self.limits, self.times = live, live.limits, times

    # Of requests and limits, on any thread

    @classmethod
    def is_wanted(cls, limits: EngineLimits) -> bool:
        """Return False if no request under these limits concerns it."""
        return True

    @classmethod
    def check(cls, request: EngineRequest, limits: EngineLimits, context: int) -> None:
        """Raise InvalidRequest for what could not be served even with the engine to itself.

        context: tokens of prompt and answer, at most.
        """

    @classmethod
    def context(cls, request: EngineRequest, limits: EngineLimits, context: int) -> int:
        """Return the tokens of prompt and answer that can be held, `context` or fewer."""
        return context

    # Of sequences

    def begin(self, sequence: Sequence) -> State | None:
        """Return the state to keep of a new sequence; None: the part does not concern it."""
        return None

    def ended(self, sequence: Sequence) -> None:
        del self.of[sequence.id]

    # Of steps

    def plan(self) -> bool:
        """Prepare for a step; return False to launch none before the one in flight was read."""
        return True

    def before_room(self) -> None:
        """Called before pages are made free for the decodes of a step."""

    def before_rows(self, step: StepBuilder, *, late: bool) -> None:
        """Called before the decodes of a step are added."""

    def decoded(self, sequence: Sequence, step: StepBuilder) -> None:
        """Add to the row of a decode, which was just added."""

    def scheduled(self, step: StepBuilder) -> None:
        """Called when a step has all its rows, with its number in `live.steps`."""

    def allows_series(self) -> bool:
        """Return False if the next steps may not share one launch."""
        return True

    def op(self) -> Op | None:
        """Return what the runner shall do behind the last step that was scheduled."""
        return None

    def masks(self, step: Step) -> tuple[list[SlotMask], list[SequenceUpdate]]:
        """Return masks of a guided step, and the last updates of sequences without a next token."""
        return [], []

    def took(self, step: Step, seconds: float) -> None:
        """Note how long a step took, from when the one before was read."""


class EngineParts:
    """The parts of one scheduler, by the hooks of steps that they have."""

    def __init__(self, parts: list[EnginePart[object]]) -> None:
        self._all = parts
        self.plan = self._having("plan")
        self.before_room = self._having("before_room")
        self.before_rows = self._having("before_rows")
        self.decoded = self._having("decoded")
        self.scheduled = self._having("scheduled")
        self.allows_series = self._having("allows_series")
        self.op = self._having("op")
        self.masks = self._having("masks")
        self.took = self._having("took")

    def _having(self, hook: str) -> list[EnginePart[object]]:
        return [
            each for each in self._all if getattr(type(each), hook) is not getattr(EnginePart, hook)
        ]

    def begin(self, sequence: Sequence) -> None:
        """Let every part look at a new sequence, and at those that take slots with it."""
        self._begin(sequence)
        for each in sequence.members[1:]:
            self._begin(each)

    def _begin(self, sequence: Sequence) -> None:
        concerned: list[SequenceHooks[Sequence]] = []
        for part in self._all:
            state = part.begin(sequence)
            if state is not None:
                part.of[sequence.id] = state
                concerned.append(part)
        sequence.parts = tuple(concerned)
