"""MaxText's checkpoints hold the tensors that Hugging Face publishes, layers scanned or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from sax.errors import CheckpointError
from tests.model_server.checkpoints.orbax_trees import maxtext, save, with_config
from tests.model_server.checkpoints.tiny_folder import CONFIG, random_weights

LLAMA_31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize("scaling", [None, LLAMA_31])
def test_llama_comes_out_as_published(
    tmp_path: Path, scanned: bool, scaling: dict[str, Any] | None
) -> None:
    config = CONFIG | {"rope_scaling": scaling, "tie_word_embeddings": False}
    weights = random_weights(config)
    state = {"params": maxtext(weights, config, scanned=scanned), "opt_state": {"count": 3}}
    (tmp_path / "0").mkdir()
    save(tmp_path / "0" / "items", state)
    checkpoint = open_checkpoint(str(with_config(tmp_path, config)))
    assert sorted(checkpoint.names()) == sorted(weights)
    for name, values in weights.items():
        # Queries were divided by the root of the head size and are multiplied back.
        np.testing.assert_allclose(checkpoint.read(name), values, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("scanned", [True, False])
def test_experts_come_out_one_by_one(tmp_path: Path, scanned: bool) -> None:
    config = CONFIG | {"model_type": "mixtral", "num_hidden_layers": 2}
    tree = maxtext(random_weights(config), config, scanned=True)["params"]
    rng = np.random.default_rng(0)
    shape = (3, 2, 12, 20) if scanned else (3, 12, 20)
    first = rng.standard_normal(shape).astype(np.float32)
    block = {"wi_0": first, "gate": {"kernel": np.ones((12, 2, 3)[:: 1 if scanned else 2])}}
    if scanned:
        tree["decoder"]["layers"]["MoeBlock_0"] = block
    else:
        tree["decoder"]["layers_1"] = {"MoeBlock_0": block}
    folder = with_config(save(tmp_path / "x", {"params": {"params": tree}}), config)
    checkpoint = open_checkpoint(str(folder))
    name = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    expected = (first[2, 1] if scanned else first[2]).T
    np.testing.assert_array_equal(checkpoint.read(name), expected)
    assert checkpoint.shape("model.layers.1.block_sparse_moe.gate.weight") == (3, 12)


def test_qwen_3_has_no_folded_scale(tmp_path: Path) -> None:
    config = CONFIG | {"model_type": "qwen3"}
    weights = random_weights(config)
    tree = maxtext(weights, config, scanned=False)["params"]
    checkpoint = open_checkpoint(str(with_config(save(tmp_path / "x", {"params": tree}), config)))
    name = "model.layers.0.self_attn.q_proj.weight"
    stored = weights[name] / np.sqrt(config["head_dim"])
    np.testing.assert_allclose(checkpoint.read(name), stored, rtol=1e-6)


def test_other_families_are_refused_by_name(tmp_path: Path) -> None:
    tree = {"params": maxtext(random_weights(CONFIG), CONFIG, scanned=True)}
    folder = with_config(save(tmp_path / "x", tree), CONFIG | {"model_type": "gemma2"})
    with pytest.raises(CheckpointError, match="MaxText checkpoint of a 'gemma2' model"):
        open_checkpoint(str(folder))
