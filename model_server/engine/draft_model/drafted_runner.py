"""A runner with a draft model, which computes every step as well and guesses between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import jax
import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE, Programs, compiled_in_turn
from model_server.engine.draft_model.draft_program import (
    DraftProgram,
    GuessLayout,
    guesses_name,
    program_name,
)
from model_server.engine.guessing.proposals import Beginning, Proposals
from model_server.engine.runner import AdapterFiles, ModelRunner, batches_of
from model_server.engine.step_program import COPY, StepProgram
from model_server.kernels.pages import LayerPages
from model_server.models.weights.quantized import as_bytes
from model_server.sharing.freeing import drop, free
from sax.types import Progress


class DraftModel:
    """A draft model in memory: its weights, its pages and its compiled programs."""

    def __init__(
        self,
        program: DraftProgram,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        buckets: Sequence[Bucket],
    ) -> None:
        self.program = program
        self.most = program.most
        self.sizes = program.sizes(buckets)
        self._copied = program.copied
        self._layouts = {
            rows: GuessLayout(rows, program.limits.pages_per_sequence) for rows in self.sizes
        }
        self._lowers = program.programs(buckets)
        self._leaves = tuple(map(as_bytes, leaves))
        self.pages: tuple[LayerPages, ...] = tuple(pages)
        self._held = threading.Lock()  # while a call donates and replaces the pages
        self._compiled: dict[str, Any] = {}

    @property
    def weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self._leaves)

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        """Compile every program; each has the name of the step's program that it belongs to."""
        lowers = self._lowers

        def compiled(name: str) -> Any:
            return programs.compiled(program_name(name), lowers[name])

        report(Progress("compiling the draft model", 0, len(lowers)))
        with closing(compiled_in_turn(list(lowers), compiled)) as made:
            for done, (name, program) in enumerate(made, 1):
                self._compiled[name] = program
                report(Progress("compiling the draft model", done, len(lowers)))

    def follow(self, bucket: Bucket, vector: np.ndarray, last_tokens: jax.Array) -> None:
        """Compute the positions of a step; last_tokens: i32[B + 1], as before its choice."""
        with self._held:
            call = self._compiled[str(bucket)]
            self.pages = call(self._leaves, self.pages, vector, last_tokens)

    def copy(self, copies: Sequence[tuple[int, ...]]) -> None:
        """Copy pages, each to another."""
        for pairs in batches_of(copies, self._copied):
            with self._held:
                self.pages = self._compiled[COPY](self.pages, pairs)

    def guess(self, beginnings: Sequence[Beginning], tables: np.ndarray, depth: int) -> jax.Array:
        """Launch guesses: i32[most, R], of which each beginning has its count of its column.

        tables: i32[n, S/G].
        """
        rows = min(size for size in self.sizes if size >= len(beginnings))
        vector = self._layouts[rows].packed(beginnings, tables, depth)
        with self._held:
            call = self._compiled[guesses_name(rows)]
            made, self.pages = call(self._leaves, self.pages, vector)
        return made

    def close(self) -> None:
        """Free device memory. Idempotent."""
        with self._held:
            arrays: list[jax.Array] = jax.tree.leaves((self._leaves, self.pages))
            self._leaves, self.pages = (), ()
            free(arrays)
            drop(self._compiled)


class AskedGuesses:
    """Guesses on their way from the device: `guessing.proposals.PendingProposals`."""

    def __init__(self, beginnings: Sequence[Beginning], made: jax.Array, began_s: float) -> None:
        """made: i32[most, R]; began_s: of `time.perf_counter`, when they were asked for."""
        self._beginnings = beginnings
        self._made = made
        self._began_s = began_s

    def result(self) -> Proposals:
        rows = np.asarray(self._made).T[: len(self._beginnings)].tolist()
        asked = zip(rows, self._beginnings, strict=True)
        tokens = [tuple(row[: each.count]) for row, each in asked]
        return Proposals(tokens, time.perf_counter() - self._began_s)


class DraftedRunner(ModelRunner):
    """A Runner that is also a `guessing.proposals.SharedProposer`."""

    def __init__(
        self,
        program: StepProgram,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        buckets: Sequence[Bucket],
        adapters: AdapterFiles | None = None,
        *,
        draft: DraftModel,
    ) -> None:
        super().__init__(program, leaves, pages, buckets, adapters)
        self.draft = draft
        self._guess_seconds: dict[int, float] = {}  # by rows

    @property
    def guess_seconds(self) -> Mapping[int, float]:
        return self._guess_seconds

    @property
    def weight_bytes(self) -> int:
        return super().weight_bytes + self.draft.weight_bytes

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        super().compile(report, programs)
        self.draft.compile(report, programs)

    @property
    def warmups(self) -> int:
        return super().warmups + len(self.draft.sizes)

    def warm(self, index: int) -> None:
        if index < super().warmups:
            super().warm(index)
        else:
            self.warm_guesses(self.draft.sizes[index - super().warmups])

    def warm_guesses(self, rows: int) -> None:
        """Run the guesses of this size twice; the second time tells how long they take."""
        nothing = [Beginning(slot=0, start=0, token=0, count=0)] * rows
        tables = np.zeros((rows, self.limits.pages_per_sequence), np.int32)
        for _ in range(2):
            made = self.asked(nothing, tables, self.draft.most).result()
            self._guess_seconds[rows] = made.seconds / self.draft.most

    def forward(self, bucket: Bucket, vector: np.ndarray, given: Any = None) -> Any:
        """Run the forward pass of both models; returns the results of the model itself."""
        made = super().forward(bucket, vector, given)
        self.draft.follow(bucket, vector, self.last_tokens)
        return made

    def copy(self, copies: Sequence[tuple[int, ...]]) -> None:
        super().copy(copies)
        self.draft.copy(copies)

    def propose(self, beginnings: Sequence[Beginning]) -> Proposals:
        """As `Proposer.propose`."""
        return self.ask(beginnings).result()

    def ask(self, beginnings: Sequence[Sequence[int]]) -> AskedGuesses:
        """As `SharedProposer.ask`."""
        asked = [Beginning(*each) for each in beginnings]
        tables = self._arrays.tables([each.slot for each in asked])
        return self.asked(asked, tables, max(each.count for each in asked))

    def asked(
        self, beginnings: Sequence[Beginning], tables: np.ndarray, depth: int
    ) -> AskedGuesses:
        """Launch so many guesses; tables: i32[n, S/G], of the slots of the beginnings."""
        began_s = time.perf_counter()
        return AskedGuesses(beginnings, self.draft.guess(beginnings, tables, depth), began_s)

    def close(self) -> None:
        super().close()
        self.draft.close()
