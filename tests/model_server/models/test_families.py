"""Every family against the reference implementation's numbers (see tools/golden/families)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.kernels import xla
from model_server.models.layers.embedder import pooled
from tests.model_server.models.family_cases import (
    case_names,
    first_of_each_family,
    golden_of,
    is_encoder,
    load,
    load_encoder,
)
from tests.model_server.models.in_steps import InSteps
from tests.model_server.tiny import logits_of

FIRST = first_of_each_family()
ENCODERS = [name for name in case_names() if is_encoder(name)]
DECODERS = [name for name in case_names() if name not in ENCODERS]


def first_by_day(names: Iterable[str]) -> list[Any]:
    """One case of each family; the others are the night's."""
    return [pytest.param(n, marks=[pytest.mark.nightly] * (n not in FIRST)) for n in names]


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)


@pytest.mark.parametrize("name", first_by_day(DECODERS))
def test_a_prompt_whole_and_in_steps_gives_the_reference_implementations_logits(name: str) -> None:
    """The steps: two chunks that end inside pages, then one token at a time."""
    golden = golden_of(name)
    model, recipe = load(name)
    steps = InSteps(model, recipe, len(golden["prompt"]), xla.KERNEL)
    for chunks in ((len(golden["prompt"]),), (6, 6)):
        assert_close(steps.logits(golden["prompt"], chunks), golden["logits"])


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in FIRST if name not in ENCODERS])
def test_programs_of_one_chunk_and_of_decodes_alone_give_the_same_logits(name: str) -> None:
    """By the kernels of CPUs, and the whole prompt by the kernels that are written plainly."""
    golden = golden_of(name)
    model, recipe = load(name)
    prompt = golden["prompt"]
    steps = InSteps(model, recipe, len(prompt), xla.KERNEL)
    assert_close(steps.logits(prompt, (6, 6), alone=True), golden["logits"])

    def whole(model: Any) -> jax.Array:
        return logits_of(model, recipe, prompt)

    assert_close(np.asarray(jax.jit(whole)(model)), golden["logits"])


@pytest.mark.parametrize("name", first_by_day(ENCODERS))
def test_hidden_states_equal_the_reference_implementations(name: str) -> None:
    """The prompt as the second of two inputs, the first one longer: padding changes nothing."""
    golden = golden_of(name)
    model, prompt = load_encoder(name), golden["prompt"]
    tokens = np.zeros((2, len(prompt) + 5), np.int32)
    tokens[0], tokens[1, : len(prompt)] = 7, prompt
    inputs = (model, jnp.asarray(tokens), jnp.asarray([tokens.shape[1], len(prompt)]))
    hidden = jax.jit(_encode)(*inputs)
    assert_close(np.asarray(hidden)[1, : len(prompt)], golden["hidden"])
    vectors = pooled(hidden, inputs[2], pooling="mean", normalise=True)
    assert_close(np.asarray(vectors)[1], golden["pooled"])


def _encode(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    return model(tokens, lengths)
