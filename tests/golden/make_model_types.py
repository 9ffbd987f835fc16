"""Makes tests/golden/model_types/*: a shrunken config.json of every model type there is.

Run by hand, in an environment with torch and transformers, from the repository root:

    python -m tests.golden.make_model_types

configs.json.gz holds, by model_type, what transformers writes for its registered types with their
usual values and small sizes. outputs.npz holds, for every text model among them that runs so,
`<model_type>.logits` f32[S, V] (bidirectional encoders: `.hidden` f32[S, D]) for the tokens
PROMPT; tensors.json.gz the names and shapes of its weights, which follow from their names (see
random_tensor). Types that need more than tokens have a config only.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from tests.golden.random_tensor import random_tensor

HERE = Path(__file__).parent / "model_types"
PROMPT = [3, 17, 44, 9, 61, 28, 28, 5, 50, 12, 33, 7, 58, 21]
_MOST_WEIGHTS = 4_000_000
# Set where a type's config has the key. Windows are shorter than the prompt.
_SMALL = {
    "bos_token_id": 1,
    "d_inner": 48,
    "d_model": 32,
    "decoder_layers": 4,
    "embedding_size": 32,
    "encoder_layers": 4,
    "eos_token_id": 2,
    "expert_layer_period": 2,
    "ffn_dim": 48,
    "first_k_dense_replace": 1,
    "head_dim": 8,
    "hidden_size": 32,
    "intermediate_size": 48,
    "kv_lora_rank": 16,
    "max_position_embeddings": 64,
    "moe_intermediate_size": 16,
    "n_ctx": 64,
    "n_embd": 32,
    "n_group": 2,
    "n_head": 4,
    "n_layer": 4,
    "n_positions": 64,
    "n_routed_experts": 8,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_layers": 4,
    "num_local_experts": 8,
    "original_max_position_embeddings": 64,
    "pad_token_id": 0,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "rotary_dim": 8,
    "shared_expert_intermediate_size": 16,
    "sliding_window": 6,
    "topk_group": 1,
    "v_head_dim": 8,
    "vocab_size": 64,
}
# Some types have as many kv heads as heads, or no usual size of a head.
_VARIANTS = (_SMALL, _SMALL | {"num_key_value_heads": 4}, {"head_dim": 8})
Tensors = dict[str, list[int]]


def small_configs(kind: str) -> list[Any]:
    """The type's usual config, shrunk where that is allowed, in a few ways."""
    usual = CONFIG_MAPPING[kind]()
    there, made = usual.to_dict(), []
    for variant in _VARIANTS:
        small = {k: v for k, v in (_SMALL | variant).items() if there.get(k) is not None}
        small |= {k: v for k, v in variant.items() if variant is _VARIANTS[-1] and k in there}
        with contextlib.suppress(Exception):  # sizes that depend on others in a way of their own
            made.append(type(usual)(**small))
    return made or [usual]


def published(config: Any, name: str | None) -> dict[str, Any]:
    """Its config.json, with the class of a text model."""
    written = json.loads(config.to_json_string())
    return written | ({"architectures": [name]} if name else {})


def architecture_of(kind: str) -> tuple[str, str] | None:
    """The class that reads tokens, and which of its outputs is kept."""
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return "AutoModel", "hidden"
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "AutoModelForCausalLM", "logits"
    return None


def outputs_of(auto: str, config: Any) -> tuple[str, Tensors, np.ndarray]:
    """Class name, weights and output. Raises whatever its code raises for tokens alone."""
    factory = getattr(transformers, auto)
    with torch.device("meta"):
        count = sum(each.numel() for each in factory.from_config(config).parameters())
    assert count < _MOST_WEIGHTS, f"{count} weights"
    with tempfile.TemporaryDirectory() as folder:
        factory.from_config(config).save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        with safe_open(path, "np") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
        drawn = {name: random_tensor(name, tuple(shape)) for name, shape in shapes.items()}
        save_file(drawn, path, {"format": "pt"})
        model = factory.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
        ).eval()
    with torch.no_grad():
        out = model(torch.tensor([PROMPT]))
    found = out.logits if "logits" in out else out.last_hidden_state
    assert torch.isfinite(found).all()
    return type(model).__name__, shapes, found[0].numpy()


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    configs: dict[str, Any] = {}
    tensors: dict[str, Tensors] = {}
    outputs: dict[str, np.ndarray] = {}
    for kind in CONFIG_MAPPING_NAMES:
        try:
            small = small_configs(kind)
        except Exception as error:
            sys.stdout.write(f"{kind}: no config: {error!s:.80}\n")
            continue
        configs[kind] = published(small[0], None)
        if asked := architecture_of(kind):
            auto, output = asked
            for config in small:
                try:
                    name, shapes, found = outputs_of(auto, config)
                except Exception as error:
                    sys.stdout.write(f"{kind}: did not run: {error!s:.80}\n")
                    continue
                configs[kind] = published(config, name)
                tensors[kind], outputs[f"{kind}.{output}"] = shapes, found
                break
    write(HERE / "configs.json.gz", configs)
    write(HERE / "tensors.json.gz", tensors)
    how = f"torch {torch.__version__} (CPU), transformers {transformers.__version__}, float32"
    np.savez_compressed(
        HERE / "outputs.npz", how=np.asarray(how), prompt=np.asarray(PROMPT), **outputs
    )


def write(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
