"""Google's Flax checkpoints of Gemma hold the tensors that Hugging Face publishes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from tests.model_server.checkpoints.orbax_trees import gemma, nested, save, with_config
from tests.model_server.checkpoints.tiny_folder import CONFIG, random_weights


def _case(model_type: str, kv_heads: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    config = CONFIG | {"model_type": model_type, "num_key_value_heads": kv_heads}
    weights = random_weights(config)
    rng = np.random.default_rng(1)
    for layer in range(config["num_hidden_layers"]):
        more = {} if model_type == "gemma" else {"pre_feedforward": 12, "post_feedforward": 12}
        names = {f"{name}_layernorm": size for name, size in more.items()}
        if model_type == "gemma3_text":
            names |= {"self_attn.q_norm": 6, "self_attn.k_norm": 6}
        for name, size in names.items():
            values = rng.standard_normal(size).astype(np.float32)
            weights[f"model.layers.{layer}.{name}.weight"] = values
    return config, weights


# The heads and the order of axes are not of a version, but each is looked at by day.
BY_DAY = [("gemma", 1, True), ("gemma2", 4, False), ("gemma3_text", 2, True)]
GRID = product(["gemma", "gemma2", "gemma3_text"], [1, 2, 4], [True, False])


@pytest.mark.parametrize(
    ("model_type", "kv_heads", "model_first"),
    [pytest.param(*of, marks=[] if of in BY_DAY else pytest.mark.nightly) for of in GRID],
)
def test_every_version_comes_out_as_published(
    tmp_path: Path, model_type: str, kv_heads: int, model_first: bool
) -> None:
    config, weights = _case(model_type, kv_heads)
    tree: dict[str, Any] = gemma(weights, config, model_first=model_first)
    if model_type == "gemma3_text":  # the vision tower is another model's
        tree["SigLiPFromPatches_0/siglip_encoder/embedding"] = {"kernel": np.zeros((2, 2, 3, 4))}
        tree["transformer/embedder"]["mm_input_projection"] = {"w": np.zeros((2, 12))}
    checkpoint = open_checkpoint(str(with_config(save(tmp_path / "x", tree), config)))
    assert sorted(checkpoint.names()) == sorted(weights)
    for name, values in weights.items():
        np.testing.assert_array_equal(checkpoint.read(name), values, err_msg=name)
        part = tuple(slice(1, size) for size in values.shape)
        np.testing.assert_array_equal(checkpoint.read(name, part), values[part], err_msg=name)


def test_a_tree_of_the_newer_library_nests(tmp_path: Path) -> None:
    config, weights = _case("gemma2", 2)
    flat = gemma(weights, config, model_first=False)
    paths = {
        f"{path.removeprefix('transformer/')}/{leaf}".removesuffix(
            "/w" if "mlp" in path else "-"
        ): v
        for path, leaves in flat.items()
        for leaf, v in leaves.items()
    }
    folder = with_config(save(tmp_path / "x", nested(paths)), config)
    checkpoint = open_checkpoint(str(folder))
    assert sorted(checkpoint.names()) == sorted(weights)
    for name, values in weights.items():
        np.testing.assert_array_equal(checkpoint.read(name), values)
