"""A step shows a draft head the hidden states of its tokens: the last ones, or those of layers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model_server.engine.buckets import Bucket
from model_server.engine.column_layout import ColumnLayout
from model_server.engine.step_arrays import StepArrays
from model_server.engine.step_program import StepProgram
from model_server.engine.types import PageGrant, Row, Step
from model_server.kernels import xla
from model_server.kernels.whole import no_pages, whole_batch
from model_server.loading.random_weights import random_weights
from model_server.models.layers.whole_decoder import embedded
from tests.model_server.engine.running.test_draft_program import (
    LIMITS,
    TABLES,
    TEXTS,
    VOCAB,
    target,
)
from tests.model_server.tiny import empty_pages

READ = (2, 3, 4)


def whole(text: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The last hidden states of a text, and the streams before the layers that are read."""
    recipe = target()
    module = recipe.blueprint()
    decoder = module.assemble(random_weights(module.declarations, 3, lambda _: None))
    tokens, lengths = jnp.asarray([text], jnp.int32), jnp.asarray([len(text)], jnp.int32)
    layers, ropes = list(decoder.layers), decoder.ropes
    streams: dict[int, np.ndarray] = {}
    for count in (*READ, len(layers)):
        decoder.layers, decoder.ropes = nnx.List(layers[:count]), ropes[:count]
        x = embedded(decoder, tokens)[0]
        at, batch = jnp.arange(len(text)), whole_batch(lengths, len(text))
        made, _ = decoder.run(x, at, [no_pages()] * count, batch)
        streams[count] = np.asarray(made)
    last = np.asarray(decoder.final_norm(jnp.asarray(streams[len(layers)])))
    return last, np.concatenate([streams[count] for count in READ], axis=-1)


def shown(shows: tuple[int, ...]) -> list[np.ndarray]:
    """What one step with both texts shows of each."""
    recipe, bucket, arrays = target(), Bucket(2, 8), StepArrays(LIMITS)
    module, layout = recipe.blueprint(), ColumnLayout(bucket, LIMITS)
    leaves = tuple(random_weights(module.declarations, 3, lambda _: None))
    pages = empty_pages(recipe, LIMITS.pages, xla.KERNEL)
    parts = module, leaves, pages, LIMITS, xla.KERNEL
    step = StepProgram(*parts, vocab=VOCAB, shows=shows).lower(bucket).compile()
    rows = tuple(Row(n, n, 0, tuple(text), yields=True) for n, text in enumerate(TEXTS))
    grants = tuple(PageGrant(slot, 0, table) for slot, table in enumerate(TABLES))
    vector, _ = arrays.pack(Step(0, rows, grants), layout)
    _, _, hidden = step(leaves, pages, vector, jnp.zeros(3, jnp.int32))
    firsts = [bucket.decodes, bucket.decodes + 12]  # the first text takes three blocks of four
    ends = zip(firsts, TEXTS, strict=True)
    return [np.asarray(hidden)[first : first + len(text)] for first, text in ends]


@pytest.mark.nightly
def test_a_step_shows_the_states_of_its_tokens() -> None:
    last, layers = shown(()), shown(READ)
    for number, text in enumerate(TEXTS):
        wanted_last, wanted_layers = whole(text)
        np.testing.assert_allclose(last[number], wanted_last, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(layers[number], wanted_layers, rtol=2e-4, atol=2e-5)
