"""A family computes from its GGUF file what the reference implementation computes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from model_server.plan.checkpoint.convert import convert
from tests.each_case import Failures
from tests.model_server.checkpoints.gguf_case import FAMILIES, one_of_each_type, write_case
from tests.model_server.tiny import logits_of


# Each is a program to compile; tensors and configurations are looked at in test_gguf_families.py.
@pytest.mark.parametrize(
    "case",
    [
        *("bert", "deepseek_v3", "gemma2", "gpt2"),
        pytest.param(None, id="every other type", marks=pytest.mark.nightly),
    ],
)
def test_the_file_computes_the_reference_implementations_numbers(
    case: str | None, tmp_path: Path
) -> None:
    failures = Failures()
    for each in [case] if case else one_of_each_type():
        with failures.of(each):
            golden = np.load(FAMILIES / each / "golden.npz")
            file = tmp_path / f"{each}.gguf"
            convert(str(write_case(each, tmp_path / each)), str(file))
            with closing(open_checkpoint(str(file))) as checkpoint:
                found = run(checkpoint, golden["prompt"])
            wanted = golden["logits"] if "logits" in golden else golden["hidden"]
            np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)
    assert not failures, str(failures)


def run(checkpoint: Checkpoint, prompt: np.ndarray) -> np.ndarray:
    """Logits, or an encoder's hidden states, of a prompt."""
    recipe: Any = make_recipe("auto", checkpoint.config, {"DTYPE": '"float32"'})
    module = recipe.blueprint()
    model = module.assemble(read_weights(module.declarations, checkpoint, lambda _: None))
    if checkpoint.config["model_type"] == "bert":
        call = jax.jit(lambda model, tokens, lengths: model(tokens, lengths))
        return np.asarray(call(model, jnp.asarray(prompt[None]), jnp.asarray([len(prompt)])))[0]

    def logits(model: Any) -> jax.Array:
        return logits_of(model, recipe, prompt)

    return np.asarray(jax.jit(logits)(model))
