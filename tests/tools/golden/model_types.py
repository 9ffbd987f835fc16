"""A small config.json of every model type that transformers has, and outputs of its text models.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.golden.random_tensor import random_tensor
from tests.tools.golden import common

CASES = ["all"]
PROMPT = [3, 17, 44, 9, 61, 28, 28, 5, 50, 12, 33, 7, 58, 21]
_MOST_WEIGHTS = 4_000_000
# Set where a type's config has the key. Windows are shorter than the prompt.
_SIZES = {
    0: "pad_token_id",
    1: "bos_token_id first_k_dense_replace topk_group",
    2: "eos_token_id expert_layer_period n_group num_experts_per_tok num_key_value_heads",
    4: "decoder_layers encoder_layers n_head n_layer num_attention_heads num_heads "
    "num_hidden_layers num_layers",
    6: "sliding_window",
    8: "head_dim n_routed_experts num_experts num_local_experts qk_nope_head_dim qk_rope_head_dim "
    "rotary_dim v_head_dim",
    12: "q_lora_rank",
    16: "kv_lora_rank moe_intermediate_size shared_expert_intermediate_size",
    32: "d_model embedding_size hidden_size n_embd",
    48: "d_inner ffn_dim intermediate_size",
    64: "max_position_embeddings n_ctx n_positions original_max_position_embeddings vocab_size",
}
_SMALL = {key: size for size, keys in _SIZES.items() for key in keys.split()}
# Some types have as many kv heads as heads, or no usual size of a head.
_VARIANTS = (_SMALL, _SMALL | {"num_key_value_heads": 4}, {"head_dim": 8})


def small_configs(kind: str) -> list[Any]:
    """The type's usual config, shrunk where that is allowed, in a few ways."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

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
    from transformers.models.auto import modeling_auto

    if kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return "AutoModel", "hidden"
    if kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "AutoModelForCausalLM", "logits"
    return None


def outputs_of(auto: str, config: Any) -> tuple[str, common.Shapes, np.ndarray]:
    """Class name, weights and output. Raises whatever its code raises for tokens alone."""
    import torch
    import transformers

    factory = getattr(transformers, auto)
    with torch.device("meta"):
        count = sum(each.numel() for each in factory.from_config(config).parameters())
    assert count < _MOST_WEIGHTS, f"{count} weights"
    with tempfile.TemporaryDirectory() as folder:
        factory.from_config(config).save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        shapes = common.shapes_in(path)
        drawn = {name: random_tensor(name, shape) for name, shape in shapes.items()}
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


def make(name: str, into: Path) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    configs: dict[str, Any] = {}
    tensors: dict[str, common.Shapes] = {}
    outputs: dict[str, Any] = {}
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
                    kept, shapes, found = outputs_of(auto, config)
                except Exception as error:
                    sys.stdout.write(f"{kind}: did not run: {error!s:.80}\n")
                    continue
                configs[kind] = published(config, kept)
                tensors[kind], outputs[f"{kind}.{output}"] = shapes, found
                break
    into.mkdir(parents=True, exist_ok=True)
    write(into / "configs.json.gz", configs)
    write(into / "tensors.json.gz", tensors)
    how = common.how("model_types", name, "float32")
    np.savez_compressed(
        into / "outputs.npz", how=np.asarray(how), prompt=np.asarray(PROMPT), **outputs
    )


def write(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
