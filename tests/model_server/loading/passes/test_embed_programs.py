"""Buckets of an embedder, and a model whose vector of an input is (its sum, its length)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from model_server.loading.compile_watch import CompileWatch
from model_server.loading.passes.embed_programs import EmbedPrograms
from model_server.loading.passes.loaded_passes import Ids, Vector
from model_server.loading.passes.pass_programs import PassBatches
from model_server.models.weights.weight import blueprint, weight
from sax.types import Progress

CONTEXT = 48


class Sums(nnx.Module):
    def __init__(self) -> None:
        self.scale = weight((1,), (None,), dtype=jnp.float32)


def sum_and_length(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    there = jnp.arange(tokens.shape[1]) < lengths[:, None]
    total = jnp.where(there, tokens, 0).sum(1) * model.scale[...]
    return jnp.stack([total, lengths.astype(jnp.float32)], axis=1)


@pytest.fixture(scope="module")
def runner() -> PassBatches[Ids, Vector]:
    module = blueprint(Sums)
    programs = EmbedPrograms(module, sum_and_length, context=CONTEXT, batch=4)
    programs.compile(lambda progress: None)
    return PassBatches(programs, [jnp.asarray([2.0])])


def test_every_input_gets_its_own_vector(runner: PassBatches[Ids, Vector]) -> None:
    inputs = [[1, 2], [3], [4, 5, 6], [7], [8, 9], [1]]
    assert runner.run(inputs) == [[6, 2], [6, 1], [30, 3], [14, 1], [34, 2], [2, 1]]


def test_lengths_up_to_the_whole_context_are_computed(runner: PassBatches[Ids, Vector]) -> None:
    assert [runner.group([1] * count) for count in (1, 32, 33, CONTEXT)] == [
        32,
        32,
        CONTEXT,
        CONTEXT,
    ]
    assert runner.run([[1] * CONTEXT]) == [[2 * CONTEXT, CONTEXT]]


def test_warming_runs_every_bucket_and_compiles_nothing(runner: PassBatches[Ids, Vector]) -> None:
    news: list[Progress] = []
    watch = CompileWatch(strict=True)
    try:
        runner.warm(news.append)
        assert watch.while_serving == 0
    finally:
        watch.stop()
    assert [(progress.done, progress.total) for progress in news] == [(n, 4) for n in range(4)]


def test_nothing_is_compiled_while_serving(runner: PassBatches[Ids, Vector]) -> None:
    watch = CompileWatch(strict=True)
    try:
        for count in range(1, 10):
            runner.run([[1, 2, 3]] * count)
        assert watch.while_serving == 0
    finally:
        watch.stop()


def test_compiling_counts_its_progress_and_tells_the_workspace() -> None:
    news: list[Progress] = []
    programs = EmbedPrograms(blueprint(Sums), sum_and_length, context=CONTEXT, batch=1)
    programs.compile(news.append)
    assert [(progress.done, progress.total) for progress in news] == [(0, 2), (1, 2), (2, 2)]
    assert programs.workspace > 0


def test_a_closed_runner_holds_nothing() -> None:
    programs = EmbedPrograms(blueprint(Sums), sum_and_length, context=32, batch=1)
    programs.compile(lambda progress: None)
    runner = PassBatches(programs, [jnp.asarray([2.0])])
    assert not runner.closed
    runner.close()
    runner.close()
    assert runner.closed
    assert not programs.compiled
