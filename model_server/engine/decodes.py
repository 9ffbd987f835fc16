"""The decodes of a step: a row for every running sequence that is past its prompt. Pure."""

from __future__ import annotations

from collections.abc import Callable

from model_server.engine.live_sequences import LiveSequences
from model_server.engine.part import EngineParts
from model_server.engine.sequence import Sequence
from model_server.engine.step_builder import StepBuilder


class Decodes:
    """Adds decodes to steps, and makes room for those that need a page."""

    def __init__(
        self, live: LiveSequences, parts: EngineParts, preempt: Callable[[Sequence], None]
    ) -> None:
        self.tokens = 0  # computed, including surplus ones
        self._live = live
        self._pool = live.held.pool
        self._running = live.running
        self._page_size = live.limits.page_size
        self._parts = parts
        self._preempt = preempt

    def add(self, step: StepBuilder, *, late: bool = False) -> None:
        """Add a row for every running sequence that is past its prefill.

        late: also for those that wait for the host, for want of others.
        """
        for part in self._parts.before_room:
            part.before_room()
        if self._pool.free < len(self._running):
            self._make_room()
        for part in self._parts.before_rows:
            part.before_rows(step, late=late)
        hooks = self._parts.decoded
        for sequence in self._running:
            start = sequence.launched
            if start < sequence.goal or start + 1 >= sequence.finish_at:
                continue
            if sequence.group is not None and not sequence.next_is_known:
                continue
            if sequence.parts and not self._may_decode(sequence, step, late=late):
                continue
            step.reach(sequence)
            if sequence.parts and self._decode_ahead(sequence, step):
                continue
            step.decode(sequence)
            for part in hooks:
                part.decoded(sequence, step)
        step.leave_blocks()
        self.tokens += sum(row.count for row in step.rows)

    def _may_decode(self, sequence: Sequence, step: StepBuilder, *, late: bool) -> bool:
        return not any(
            part.holds(sequence) or part.waits(sequence, late=late) for part in sequence.parts
        )

    def _decode_ahead(self, sequence: Sequence, step: StepBuilder) -> bool:
        """Add a row of several known tokens in place of a decode, if there is one."""
        step.guided |= sequence.request.sampling.guided
        for part in sequence.parts:
            if (row := part.row(sequence)) is not None:
                step.behind.append(row)
                sequence.launched += row.count
                sequence.in_flight += 1
                return True
        return False

    def _make_room(self) -> None:
        """Preempt until every sequence that decodes into a new page can have one."""
        while self._pool.free < sum(map(self._needs_page, self._running)):
            self._preempt(self._live.accounts.victim())

    def _needs_page(self, sequence: Sequence) -> bool:
        start = sequence.launched
        if not sequence.goal <= start < sequence.end:
            return False
        if sequence.group is not None and not sequence.next_is_known:
            return False
        if start < len(sequence.pages) * self._page_size:
            return False
        return not any(part.holds(sequence) for part in sequence.parts)
