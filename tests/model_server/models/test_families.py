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
    config_of,
    first_of_each_family,
    golden_of,
    is_encoder,
    load,
    load_encoder,
)
from tests.model_server.models.in_steps import logits_in_steps
from tests.model_server.tiny import logits_of

FIRST = first_of_each_family()
# One of each kind of layer is in `make test`; `make test-all` takes every case.
KINDS = (
    *("llama", "gemma3_text", "gpt2", "gpt_neox", "phi3", "qwen2", "cohere2", "olmo2"),
    *("mixtral", "deepseek_v3", "gpt_oss", "llama4_text", "glm_moe_dsa", "granitemoe"),
    *("lfm2", "mamba2", "qwen3_5_text", "falcon_h1", "minimax", "gemma3n_text", "gemma4_text"),
    *("bert", "roberta", "modernbert", "qwen2_5_vl"),
)
# Of families whose layers cache something else than others do
CACHES = ("llama", "deepseek_v3", "gpt_oss", "lfm2", "mamba2", "minimax")


def cases_of(names: Iterable[str], quick: tuple[str, ...]) -> list[Any]:
    """Return the cases; those but the first of some model types are `make test-all`'s."""
    kept = {name for name in FIRST if str(config_of(name).get("model_type")) in quick}
    return [
        pytest.param(name, marks=[] if name in kept else pytest.mark.extended) for name in names
    ]


CASES = cases_of(case_names(), KINDS)
CHUNKED = cases_of((name for name in FIRST if not is_encoder(name)), CACHES)
DECODERS = [case for case in CASES if not is_encoder(str(case.values[0]))]
ENCODERS = [case for case in CASES if is_encoder(str(case.values[0]))]


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)


@pytest.mark.parametrize("name", DECODERS)
def test_logits_equal_the_reference_implementations(name: str) -> None:
    golden = golden_of(name)
    model, recipe = load(name)

    def run(model: Any) -> jax.Array:
        return logits_of(model, recipe, golden["prompt"])

    assert_close(np.asarray(jax.jit(run)(model)), golden["logits"])


@pytest.mark.parametrize("name", ENCODERS)
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


@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_and_single_tokens_give_the_logits_of_the_whole_prompt(name: str) -> None:
    """Two chunks that end inside pages, then one token at a time, over the cached ones."""
    golden = golden_of(name)
    model, recipe = load(name)
    found = logits_in_steps(model, recipe, golden["prompt"], (6, 6), xla.KERNEL)
    assert_close(found, golden["logits"])
