"""The first stage's part of a pipeline, with a draft model that lies there whole.

It follows every step with the tokens that the first stage takes in, while the other stages compute,
and guesses when no step is in flight. Its programs run on the stage's thread, in one order with
the stage's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from model_server.engine.draft_model.drafted_runner import AskedGuesses, DraftedRunner
from model_server.engine.guessing.proposals import Beginning, Proposals
from model_server.loading.stages.pipeline import PipelineRunner, StageThread
from model_server.multihost.link import Link


class DraftedPipeline(PipelineRunner):
    """A PipelineRunner of the first stage that is also a `guessing.proposals.SharedProposer`."""

    def __init__(
        self,
        runner: DraftedRunner,
        link: Link,
        thread: StageThread,
        on_failure: Callable[[BaseException], None] = lambda failure: None,
    ) -> None:
        super().__init__(runner, link, thread, on_failure)
        self._drafted = runner

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of the programs that guess."""
        return self._drafted.draft.sizes

    @property
    def guess_seconds(self) -> Mapping[int, float]:
        return self._drafted.guess_seconds

    def warm_guesses(self, rows: int) -> None:
        """Run the guesses of this size; all hosts of the stage must, in the same order."""
        self._submit(self._drafted.warm_guesses, rows).result()

    def propose(self, beginnings: Sequence[Beginning]) -> Proposals:
        """As `Proposer.propose`."""
        return self.ask(beginnings).result()

    def ask(self, beginnings: Sequence[Sequence[int]]) -> _QueuedGuesses:
        """As `SharedProposer.ask`. Raises the error that stopped the pipeline, if any."""
        if self._failure:
            raise self._failure
        asked = [Beginning(*each) for each in beginnings]
        tables = self._arrays.tables([each.slot for each in asked])
        return _QueuedGuesses(self._submit(self._guess, asked, tables))

    def _guess(self, asked: Sequence[Beginning], tables: np.ndarray) -> AskedGuesses:
        return self._drafted.asked(asked, tables, max(each.count for each in asked))


class _QueuedGuesses:
    """Guesses that the stage's thread launches."""

    def __init__(self, made: Future[AskedGuesses]) -> None:
        self._made = made
        self._began_s = time.perf_counter()

    def result(self) -> Proposals:
        """Raises the error that stopped this host's part."""
        tokens = self._made.result().result().tokens
        return Proposals(tokens, time.perf_counter() - self._began_s)
