"""Makes tests/golden/llama_tiny_*: shrunken random Llamas and what transformers says of them.

Run by hand, in an environment with torch and transformers, from the repository root:

    python tests/golden/make_llama_tiny.py

Each folder holds config.json and model.safetensors as Hugging Face writes them, and golden.npz:
prompt i64[20], logits f32[20, 97] (one row per prompt position), how (text).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
SHAPES: dict[str, dict[str, Any]] = {
    # grouped heads, tied embeddings
    "llama_tiny_tied": {
        "num_hidden_layers": 3,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-5,
    },
    # own output head, heads that do not add up to the hidden size
    "llama_tiny_untied": {
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 10,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rms_norm_eps": 1e-6,
    },
    # Llama 3's stretched positions, and biases
    "llama_tiny_llama3": {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        "rms_norm_eps": 1e-5,
    },
}


def make(name: str, shape: dict[str, Any], seed: int) -> None:
    """Write one folder."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=97,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="eager",
        **shape,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, 1.2 / parameter.shape[1] ** 0.5)
            else:  # norms and biases: away from their trivial values
                parameter.uniform_(0.5, 1.5)
        prompt = torch.randint(3, 97, (20,))
        logits = model(prompt[None]).logits[0]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)
    _use_classic_rope_keys(folder / "config.json", shape["rope_parameters"])
    np.savez(folder / "golden.npz", prompt=prompt.numpy(), logits=logits.numpy(), how=how(seed))


def _use_classic_rope_keys(path: Path, rope: dict[str, Any]) -> None:
    """Write rope_theta and rope_scaling as nearly every published config.json has them."""
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    config["rope_theta"] = rope["rope_theta"]
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    config["rope_scaling"] = None if rope["rope_type"] == "default" else scaling
    config["torch_dtype"] = config.pop("dtype", "float32")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def how(seed: int) -> str:
    """How the numbers came about, stored beside them."""
    return (
        f"python tests/golden/make_llama_tiny.py; torch {torch.__version__} (CPU), transformers "
        f"{transformers.__version__}, LlamaForCausalLM, float32, eager attention, seed {seed}"
    )


def main() -> None:
    torch.set_num_threads(1)
    for seed, (name, shape) in enumerate(SHAPES.items()):
        make(name, shape, seed)


if __name__ == "__main__":
    main()
