"""Hooks: what a part of the engine may change about one sequence (see `part`)."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from model_server.engine.request import Begun, Finish, SequenceUpdate, StepSpan
from model_server.engine.types import Row, RowResult

S = TypeVar("S")  # the sequence
S_contra = TypeVar("S_contra", contravariant=True)


class Committing(Protocol[S_contra]):
    """Takes the results of the step that is being committed."""

    span: StepSpan  # of the step
    tokens: int  # generated in all

    def token(self, sequence: S_contra, outcome: RowResult, finish: Finish | None = None) -> None:
        """Count and tell a token that the sequence took in, and end it with a `finish`."""
        ...

    def tell(self, update: SequenceUpdate) -> None: ...

    def finish(self, sequence: S_contra) -> None:
        """Forget a sequence that has ended, with its group."""
        ...


class SequenceHooks(Generic[S]):
    """Hooks through which an engine part changes the sequences that it concerns (see `part`).

    Every hook does nothing unless it is overridden.
    """

    # While it waits, and as it takes and loses its slot

    def prepare(self, sequence: S) -> None:
        """Called before a waiting sequence is looked up in the prefix cache or takes its slot."""

    def salt(self, sequence: S) -> str:
        """Return what, beside its tokens, its keys and values depend on."""
        return ""

    def reusable(self, sequence: S, most: int) -> int:
        """Return how many of its first positions need not be computed, `most` or fewer."""
        return most

    def admitted(self, sequence: S) -> None:
        """Called when it has taken its slot, with its group."""

    def follow(self, sequence: S, parent: S) -> None:
        """Note that it goes on with its parent's keys and values."""

    def followed(self, sequence: S) -> list[int]:
        """Return the positions behind which others will begin with its pages."""
        return []

    def released(self, sequence: S) -> None:
        """Called when it loses its slot."""

    def restarted(self, sequence: S) -> None:
        """Called when it has lost its slot, with its group, before it waits again."""

    def ended(self, sequence: S) -> None:
        """Called once, at its end."""

    # When a step is made

    def limit(self, sequence: S, end: int) -> int:
        """Return the first position, `end` or before, that it may not compute as it is now."""
        return end

    def holds(self, sequence: S) -> bool:
        """Return True if its next position is not computed before it has started again."""
        return False

    def waits(self, sequence: S, *, late: bool) -> bool:
        """Return True if it has no row in this step; late: other sequences have none either."""
        return False

    def is_stepwise(self, sequence: S) -> bool:
        """Return True if a row needs what is only known after the one before was read."""
        return False

    def row(self, sequence: S) -> Row | None:
        """Return a row of several known tokens in place of its decode.

        Called before every decode, which may be changed here: `sampling`, with `stated`.
        """
        return None

    def is_urgent(self, sequence: S) -> bool:
        """Return True if its chunk comes before those of others."""
        return False

    def chunk_blocks(self, sequence: S, blocks: int, most: int) -> int:
        """Return the blocks that its next chunk may take, up to `most` if it must not be cut."""
        return blocks

    def chunk_length(self, sequence: S, length: int, logit_rows: int) -> int:
        """Return the tokens of its next chunk, `length` or fewer.

        logit_rows: of the step that are left to it.
        """
        return length

    def fill(self, sequence: S, row: Row) -> Row:
        """Add to the row of a chunk, which is about to be launched."""
        return row

    def coming(self, sequence: S) -> tuple[int, ...]:
        """Return the tokens that surely come next, as far as they are known."""
        return ()

    def drafts(self, sequence: S, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the first of these draft tokens, behind its last token, that may be tried."""
        return tokens

    def redone(self, sequence: S) -> int:
        """Return how many of its last positions may be computed again."""
        return 0

    # When a step was read

    def commit(self, sequence: S, row: Row, outcome: RowResult, committing: Committing[S]) -> bool:
        """Take in the result of a row; return True if nothing is left of it for others."""
        return False

    def tell(self, sequence: S, update: SequenceUpdate) -> SequenceUpdate:
        """Add to the update for a token."""
        return update

    def begun(self, sequence: S, made: Begun) -> Begun:
        """Add to what another engine needs to go on with it."""
        return made
