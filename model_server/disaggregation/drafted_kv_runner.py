"""One host's runner with a draft model, whose pages travel with the model's own.

The server that computes a prompt has computed the draft model's part of it as well, in the same
steps. Guesses after a handoff are therefore as good as after a prompt that was computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from model_server.disaggregation.handed_pages import PageNumbers
from model_server.disaggregation.kv_runner import KvRunner, PageTraffic
from model_server.disaggregation.layer_set import Block
from model_server.disaggregation.page_copies import PageCopies
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.draft_model.drafted_runner import DraftedRunner
from model_server.engine.guessing.proposals import Beginning, PendingProposals, Proposals
from sax.types import Progress


class DraftedKvRunner(KvRunner):
    """A KvRunner that is also a `guessing.proposals.SharedProposer`.

    Blocks in transit are the model's, and behind them as many of the draft model's.
    """

    def __init__(self, runner: DraftedRunner, transfers: PageTraffic) -> None:
        super().__init__(runner, transfers)
        self._drafted, self._draft = runner, runner.draft
        self._draft_copies = PageCopies(
            runner.draft.program, gives=transfers.gives, takes=transfers.takes, draft=True
        )

    @property
    def guess_seconds(self) -> Mapping[int, float]:
        return self._drafted.guess_seconds

    def propose(self, beginnings: Sequence[Beginning]) -> Proposals:
        """As `Proposer.propose`."""
        return self._drafted.propose(beginnings)

    def ask(self, beginnings: Sequence[Sequence[int]]) -> PendingProposals:
        """As `SharedProposer.ask`."""
        return self._drafted.ask(beginnings)

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        super().compile(report, programs)
        self._draft_copies.compile(programs)

    def _warm_copies(self) -> None:
        super()._warm_copies()
        pages, _ = self._draft_copies.warm(self._draft.pages, self._last_tokens)
        self._draft.pages = pages

    def _read(self, numbers: PageNumbers) -> list[Block]:
        return [*super()._read(numbers), *self._draft_copies.read(self._draft.pages, numbers)]

    def _write(self, blocks: Sequence[Block], numbers: PageNumbers) -> None:
        own = len(blocks) // 2
        super()._write(blocks[:own], numbers)
        self._draft.pages = self._draft_copies.write(self._draft.pages, blocks[own:], numbers)
