"""transformers' Flax models: the same tensors, turned back."""

from pathlib import Path

import numpy as np

from model_server.checkpoints.opening import open_checkpoint
from tests.model_server.checkpoints.orbax_trees import flax_llama, save, with_config
from tests.model_server.checkpoints.tiny_folder import CONFIG, random_weights


def test_llama_comes_out_as_published(tmp_path: Path) -> None:
    config = CONFIG | {"tie_word_embeddings": False}
    weights = random_weights(config)
    folder = with_config(save(tmp_path / "x", {"params": flax_llama(weights)}), config)
    checkpoint = open_checkpoint(str(folder))
    assert sorted(checkpoint.names()) == sorted(weights)
    for name, values in weights.items():
        np.testing.assert_array_equal(checkpoint.read(name), values)


def test_gpt_2_keeps_its_matrices_in_by_out(tmp_path: Path) -> None:
    """FlaxGPT2's kernels are [out, in]; GPT-2's published matrices are [in, out]."""
    kernel = np.arange(36, dtype=np.float32).reshape(12, 3)
    tree = {
        "transformer": {
            "wte": {"embedding": np.ones((5, 3), np.float32)},
            "h": {"0": {"attn": {"c_attn": {"kernel": kernel, "bias": np.ones(12, np.float32)}}}},
            "ln_f": {"scale": np.ones(3, np.float32), "bias": np.zeros(3, np.float32)},
        }
    }
    folder = with_config(save(tmp_path / "x", tree), {"model_type": "gpt2"})
    checkpoint = open_checkpoint(str(folder))
    assert sorted(checkpoint.names()) == [
        "transformer.h.0.attn.c_attn.bias",
        "transformer.h.0.attn.c_attn.weight",
        "transformer.ln_f.bias",
        "transformer.ln_f.weight",
        "transformer.wte.weight",
    ]
    read = checkpoint.read("transformer.h.0.attn.c_attn.weight")
    np.testing.assert_array_equal(read, kernel.T)
