"""A draft model beside a model: it computes every step as well, and drafts tokens between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import jax
import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE, Programs, compiled_in_turn
from model_server.engine.running.compiled_steps import batches_of
from model_server.engine.running.draft_program import (
    DraftLayout,
    DraftProgram,
    draft_tokens_name,
    program_name,
)
from model_server.engine.running.ops import Beginning, Op, Proposals, Propose
from model_server.engine.running.runner import ModelRunner
from model_server.engine.running.runner_part import Prepare, RunnerPart
from model_server.engine.step_program import COPY
from model_server.kernels.pages import LayerPages
from model_server.models.weights.quantized import as_bytes
from model_server.sharing.freeing import drop, free
from sax.types import Progress


class DraftModel(RunnerPart[ModelRunner]):
    """A draft model in memory: its weights, its pages and its compiled programs."""

    def __init__(
        self,
        program: DraftProgram,
        leaves: Sequence[jax.Array],
        pages: Sequence[LayerPages],
        buckets: Sequence[Bucket],
        borrowed: Collection[int] = (),
    ) -> None:
        """borrowed: indices of the leaves that the model also has, which frees them."""
        self.program = program
        self._borrowed = frozenset(borrowed)
        self._most = program.most
        self._sizes = program.sizes(buckets)
        self._copied = program.copied
        self._layouts = {
            rows: DraftLayout(rows, program.limits.pages_per_sequence) for rows in self._sizes
        }
        self._lowers = program.programs(buckets)
        self._leaves = tuple(map(as_bytes, leaves))
        self.pages: tuple[LayerPages, ...] = tuple(pages)
        self._held = threading.Lock()  # while a call donates and replaces the pages
        self._compiled: dict[str, Any] = {}
        self.warmups = len(self._sizes)
        self._token_s: dict[int, float] = {}  # of one draft token, by rows
        self.seconds = {Propose: self._token_s}

    @property
    def weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self._own_leaves)

    @property
    def _own_leaves(self) -> list[jax.Array]:
        return [leaf for at, leaf in enumerate(self._leaves) if at not in self._borrowed]

    def join(self, runner: ModelRunner) -> Mapping[type[Op], Prepare]:
        def prepared(op: Propose) -> Callable[[], AskedDraftTokens]:
            tables = runner.arrays.tables([each.slot for each in op.beginnings])
            depth = max(each.count for each in op.beginnings)
            return partial(self._ask, op.beginnings, tables, depth, time.perf_counter())

        return {Propose: prepared}

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

    def warm(self, index: int) -> None:
        """Run the draft tokens of one size twice; the second time tells how long they take."""
        rows, most = self._sizes[index], self._most
        nothing = [Beginning(slot=0, start=0, token=0, count=0)] * rows
        tables = np.zeros((rows, self.program.limits.pages_per_sequence), np.int32)
        for _ in range(2):
            made = self._ask(nothing, tables, most, time.perf_counter()).result()
            self._token_s[rows] = made.seconds / most

    def follow(
        self, bucket: Bucket, vector: np.ndarray, last_tokens: jax.Array, *hidden: jax.Array
    ) -> None:
        """Compute the positions of a step; a draft head takes its hidden states, f32[T, W]."""
        with self._held:
            call = self._compiled[str(bucket)]
            self.pages = call(self._leaves, self.pages, vector, last_tokens, *hidden)

    def copy(self, copies: Sequence[tuple[int, ...]]) -> None:
        """Copy pages, each to another."""
        for pairs in batches_of(copies, self._copied):
            with self._held:
                self.pages = self._compiled[COPY](self.pages, pairs)

    def _ask(
        self, beginnings: Sequence[Beginning], tables: np.ndarray, depth: int, began_s: float
    ) -> AskedDraftTokens:
        """Launch draft tokens. tables: i32[n, S/G], of the slots of the beginnings."""
        rows = min(size for size in self._sizes if size >= len(beginnings))
        vector = self._layouts[rows].packed(beginnings, tables, depth)
        with self._held:
            call = self._compiled[draft_tokens_name(rows)]
            made, self.pages = call(self._leaves, self.pages, vector)
        return AskedDraftTokens(beginnings, made, began_s)

    def close(self, *, shared: bool) -> None:
        with self._held:
            arrays: list[jax.Array] = jax.tree.leaves((self._own_leaves, self.pages))
            self._leaves, self.pages = (), ()
            free(arrays)
            drop(self._compiled)


class AskedDraftTokens:
    """Draft tokens on their way from the device."""

    def __init__(self, beginnings: Sequence[Beginning], made: jax.Array, began_s: float) -> None:
        """made: i32[most, R], of which each beginning has its count of its column.

        began_s: of `time.perf_counter`, when they were asked for.
        """
        self._beginnings = beginnings
        self._made = made
        self._began_s = began_s

    def result(self) -> Proposals:
        rows = np.asarray(self._made).T[: len(self._beginnings)].tolist()
        asked = zip(rows, self._beginnings, strict=True)
        tokens = [tuple(row[: each.count]) for row, each in asked]
        return Proposals(tokens, time.perf_counter() - self._began_s)
