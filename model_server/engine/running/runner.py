"""The real Runner: compiles and warms the programs of its steps, shares weights, frees memory.

Every program is compiled before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Self

import jax
import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE, Programs, compiled_in_turn
from model_server.engine.running.compiled_steps import CompiledSteps
from model_server.engine.types import Sampling, SlotSampling
from model_server.sharing.freeing import drop, free
from sax.types import Progress

_NO_EDITS = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


class ModelRunner(CompiledSteps):
    """Runner of steps, with what loads and unloads call."""

    _idle: frozenset[Bucket] = frozenset()  # buckets whose next warm-up computes no rows

    @property
    def leaves(self) -> tuple[jax.Array, ...]:
        """The weights; other programs may read them until `close`."""
        return self._leaves

    @property
    def weight_bytes(self) -> int:
        own = sum(leaf.nbytes for leaf in self._leaves)
        return own + sum(part.weight_bytes for part in self.parts)

    @property
    def offer(self) -> str:
        """Address at which other replicas reach what a part offers; "": there is none."""
        return next((part.offer for part in self.parts if part.offer), "")

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        """Compile every program. Nothing runs yet: `warm` does that."""
        lowers = self.program.programs(self._buckets)
        report(Progress("compiling bucket", 0, len(lowers)))
        names = list(lowers)
        with closing(
            compiled_in_turn(names, lambda name: programs.compiled(name, lowers[name]))
        ) as made:
            for done, (name, program) in enumerate(made, 1):
                self.compiled[name] = program
                report(Progress("compiling bucket", done, len(lowers)))
        for part in self.parts:
            part.compile(report, programs)

    def sibling(self, pages: Sequence[Any]) -> Self:
        """Return a runner with slots and pages of its own, and the weights and programs of this."""
        parts = [part.sibling() for part in self.parts]
        made = type(self)(self.program, self._leaves, pages, self._buckets, parts)
        self._share_with(made)
        return made

    def _share_with(self, other: ModelRunner) -> None:
        other.compiled = dict(self.compiled)
        other._sharers = self._sharers
        self._sharers.add(id(other))

    @property
    def _own_warmups(self) -> int:
        return len(self._buckets) + len(self.program.series_of(self._buckets))

    @property
    def warmups(self) -> int:
        return self._own_warmups + self.part_warmups

    def warm(self, index: int) -> None:
        if index >= self._own_warmups:
            self.warm_part(index - self._own_warmups)
            return
        if index >= len(self._buckets):
            series = self.program.series_of(self._buckets)
            self._warm_series(series[index - len(self._buckets)])
            return
        bucket = self._buckets[index]
        vector = self._warm_vector(bucket)
        self.warm_write()
        self.warm_copy()
        made = self.forward(bucket, vector)
        self.write_masks((), self.layouts[bucket].logit_rows)
        jax.block_until_ready(self.chosen(made))

    def warm_idly(self) -> None:
        """Let the first warm-up of each bucket compute no rows: it links, which is all it is for
        where the last start has measured."""
        self._idle = frozenset(self._buckets)

    def _warm_vector(self, bucket: Bucket) -> np.ndarray:
        layout, idle = self.layouts[bucket], bucket in self._idle
        self._idle -= {bucket}
        return self.arrays.idle(layout) if idle else self.arrays.full(layout)

    @property
    def part_warmups(self) -> int:
        """Number of indices for `warm_part`."""
        return sum(part.warmups for part in self.parts)

    def warm_part(self, index: int) -> None:
        """Run programs of parts once; the parts follow each other."""
        for part in self.parts:
            if index < part.warmups:
                part.warm(index)
                return
            index -= part.warmups
        raise IndexError(f"there are {self.part_warmups} to warm")

    def _warm_series(self, bucket: Bucket) -> None:
        vector = self.arrays.full(self.layouts[bucket])
        vectors = np.stack([vector] * self.limits.steps_per_launch)
        jax.block_until_ready(self._series(bucket, vectors))

    def warm_write(self) -> None:
        """Write the scratch slot, if this runner chooses tokens."""
        if self.state is not None:
            self.write([self._packed(SlotSampling(self.limits.slots, _NO_EDITS))])

    def warm_copy(self) -> None:
        """Copy the scratch page onto itself."""
        self.copy([(0,) * self.program.copied])

    def replace(
        self,
        indices: Sequence[int],
        made: Callable[[tuple[jax.Array, ...]], Sequence[jax.Array]],
    ) -> None:
        """Replace some of the weights, between two calls; made: takes what is at the indices."""
        with self.held:
            leaves = list(self._leaves)
            old = tuple(leaves[index] for index in indices)
            for index, array in zip(indices, made(old), strict=True):
                leaves[index] = array
            self._leaves = tuple(leaves)

    def close(self) -> None:
        """Free device memory; a call of another thread gets an error."""
        with self.held:
            self.closed = True
            self._sharers.discard(id(self))
            shared = bool(self._sharers)
            held = (() if shared else self._leaves, self.pages, self.state, self._no_tokens)
            arrays: list[jax.Array] = jax.tree.leaves(held)
            self._leaves, self.pages = (), ()
            free(arrays)
            drop(self.compiled)
        for part in self.parts:
            part.close(shared=shared)
