"""One request inside the engine: its progress, and what its parts may change about it.

Positions count tokens of prompt and answer together. The device computes position p from token p;
the last computed position of a row yields token p + 1. So the last token of all is never computed.
"""

from __future__ import annotations

import copy
import threading
from typing import Protocol

from model_server.engine.paging_state import PagingState
from model_server.engine.request import Begun, EngineRequest, Finish, SequenceUpdate, StepSpan
from model_server.engine.types import Columns, Row, RowResult


class Committing(Protocol):
    """Takes the results of the step that is being committed."""

    span: StepSpan  # of the step
    tokens: int  # generated in all

    def token(self, sequence: Sequence, outcome: RowResult, finish: Finish | None = None) -> None:
        """Count and tell a token that the sequence took in, and end it with a `finish`."""
        ...

    def tell(self, update: SequenceUpdate) -> None: ...

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended, with its group."""
        ...


class SequenceHooks:
    """What a part of the engine may change about a sequence that concerns it (see `part`).

    Every hook does nothing unless it is overridden.
    """

    # While it waits, and as it takes and loses its slot

    def prepare(self, sequence: Sequence) -> None:
        """Called before a waiting sequence is looked up in the prefix cache or takes its slot."""

    def salt(self, sequence: Sequence) -> str:
        """Return what, beside its tokens, its keys and values depend on."""
        return ""

    def reusable(self, sequence: Sequence, most: int) -> int:
        """Return how many of its first positions need not be computed, `most` or fewer."""
        return most

    def admitted(self, sequence: Sequence) -> None:
        """Called when it has taken its slot, with its group."""

    def follow(self, sequence: Sequence, parent: Sequence) -> None:
        """Note that it goes on with its parent's keys and values."""

    def followed(self, sequence: Sequence) -> list[int]:
        """Return the positions behind which others will begin with its pages."""
        return []

    def released(self, sequence: Sequence) -> None:
        """Called when it loses its slot."""

    def restarted(self, sequence: Sequence) -> None:
        """Called when it has lost its slot, with its group, before it waits again."""

    def ended(self, sequence: Sequence) -> None:
        """Called once, at its end."""

    # When a step is made

    def limit(self, sequence: Sequence, end: int) -> int:
        """Return the first position, `end` or before, that it may not compute as it is now."""
        return end

    def holds(self, sequence: Sequence) -> bool:
        """Return True if its next position is not computed before it has started again."""
        return False

    def waits(self, sequence: Sequence, *, late: bool) -> bool:
        """Return True if it has no row in this step; late: other sequences have none either."""
        return False

    def is_stepwise(self, sequence: Sequence) -> bool:
        """Return True if a row needs what is only known after the one before was read."""
        return False

    def row(self, sequence: Sequence) -> Row | None:
        """Return a row of several known tokens in place of its decode.

        Called before every decode, which may be changed here: `sampling`, with `stated`.
        """
        return None

    def is_urgent(self, sequence: Sequence) -> bool:
        """Return True if its chunk comes before those of others."""
        return False

    def chunk_blocks(self, sequence: Sequence, blocks: int, most: int) -> int:
        """Return the blocks that its next chunk may take, up to `most` if it must not be cut."""
        return blocks

    def chunk_length(self, sequence: Sequence, length: int, logit_rows: int) -> int:
        """Return the tokens of its next chunk, `length` or fewer.

        logit_rows: of the step that are left to it.
        """
        return length

    def fill(self, sequence: Sequence, row: Row) -> Row:
        """Add to the row of a chunk, which is about to be launched."""
        return row

    def coming(self, sequence: Sequence) -> tuple[int, ...]:
        """Return the tokens that surely come next, as far as they are known."""
        return ()

    def drafts(self, sequence: Sequence, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the first of these draft tokens, behind its last token, that may be tried."""
        return tokens

    def redone(self, sequence: Sequence) -> int:
        """Return how many of its last positions may be computed again."""
        return 0

    # When a step was read

    def commit(
        self, sequence: Sequence, row: Row, outcome: RowResult, committing: Committing
    ) -> bool:
        """Take in the result of a row; return True if nothing is left of it for others."""
        return False

    def tell(self, sequence: Sequence, update: SequenceUpdate) -> SequenceUpdate:
        """Add to the update for a token."""
        return update

    def begun(self, sequence: Sequence, made: Begun) -> Begun:
        """Add to what another engine needs to go on with it."""
        return made


class Sequence:
    """The scheduler's state of one request."""

    __slots__ = (
        "columns",
        "finish_at",
        "goal",
        "group",
        "id",
        "in_flight",
        "launched",
        "lost",
        "pages",
        "paging",
        "parts",
        "priority",
        "prompt",
        "request",
        "reused",
        "sampling",
        "since",
        "slot",
        "started_s",
        "stated",
        "tokens",
    )

    def __init__(self, id: int, request: EngineRequest, context: int) -> None:
        """context: tokens of prompt and answer, at most."""
        self.id = id
        self.request = request
        self.parts: tuple[SequenceHooks, ...] = ()  # those that it concerns, in their order
        # Sequences that take and lose slots together, the one that was submitted first; their host
        # chooses each next token. None: it is alone.
        self.group: list[Sequence] | None = None
        self.sampling = request.sampling  # of its next token; a part may change it for a while
        self.prompt = prompt = len(request.prompt)  # tokens of it
        self.finish_at = min(prompt + request.max_tokens, context)  # tokens, at most
        self.tokens = request.tokens  # known and committed
        # While it waits:
        self.priority = request.priority
        self.since = 0  # the number of steps when it began to wait
        self.lost = 0  # positions computed when it was preempted, at most
        # Since it last took a slot:
        self.started_s = 0.0  # when it first took one; 0: not yet
        self.slot = -1  # -1 while waiting
        self.pages: list[int] = []
        self.paging = PagingState(computed=request.computed)
        self.columns = Columns()  # of its rows
        self.launched = 0  # positions computed, in flight or found in the cache
        self.reused = 0  # positions found in the cache
        self.goal = 0  # positions that are prefill; from there on it decodes
        # The slot's last token is another (one that was tried, or is chosen anew), or it samples in
        # another way: the next row carries its own token, and how it samples.
        self.stated = False
        self.in_flight = 0  # rows launched whose token is not committed; kept across preemptions

    @property
    def end(self) -> int:
        """Positions to compute in all."""
        return self.finish_at - 1

    @property
    def limit(self) -> int:
        """First position that it may not compute as it is now."""
        end = self.finish_at - 1
        for part in self.parts:
            end = part.limit(self, end)
        return end

    @property
    def width(self) -> int:
        """Slots that it takes."""
        return 1 if self.group is None else len(self.group)

    @property
    def is_follower(self) -> bool:
        """True if another sequence stands for its group."""
        return self.group is not None and self.group[0] is not self

    @property
    def members(self) -> list[Sequence]:
        """All that take and lose slots with it, itself included."""
        return [self] if self.group is None else self.group

    @property
    def settled(self) -> bool:
        """True if no token is on its way, nor one of a sequence that takes slots with it."""
        return not (self.in_flight if self.group is None else any(s.in_flight for s in self.group))

    @property
    def generates(self) -> bool:
        return self.finish_at > self.prompt

    @property
    def next_is_known(self) -> bool:
        return self.launched < len(self.tokens)

    @property
    def begun(self) -> Begun:
        """Its progress; a group would begin again."""
        answer = () if self.group is not None else tuple(self.tokens[self.prompt :])
        made = Begun(self.id, answer)
        for part in self.parts:
            made = part.begun(self, made)
        return made

    @property
    def reusable(self) -> int:
        """First positions that it need not compute at its next start: its last one yields a token.

        Neither may those be skipped of which a part wants results.
        """
        most = (len(self.tokens) if self.generates else self.end) - 1
        for part in self.parts:
            most = part.reusable(self, most)
        return most

    def append(self, token: int) -> Finish | None:
        """Take in the token of a row in flight."""
        self.in_flight -= 1
        self.tokens.append(token)
        if token in self.request.stop_ids:
            return "stop"
        return "length" if len(self.tokens) == self.finish_at else None

    def empty_copy(self, id: int) -> Sequence:
        """Return a sequence without tokens and pages, of the same request, that has not begun."""
        made = copy.copy(self)
        made.id, made.tokens, made.pages, made.paging = id, [], [], PagingState()
        return made


def redone(sequence: Sequence) -> int:
    """Return how many of its last positions may be computed again."""
    return max((part.redone(sequence) for part in sequence.parts), default=0)


class Ids:
    """Ids of sequences, higher and higher, for all engines that share them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1

    def take(self, count: int = 1) -> int:
        """Return the first of `count` ids that follow each other."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return first
