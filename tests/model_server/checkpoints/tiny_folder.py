"""A whole Hugging Face folder of a few kilobytes: random weights, a byte-level tokenizer, a chat.

The vocabulary: three control tokens (0-2), a user-defined one (3), the 256 bytes, two merges.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from model_server.text.token_bytes import byte_alphabet

CONTROL = ("<|end|>", "<|turn|>", "<|stop|>")
CHAT = (
    "{% for m in messages %}{{ '<|turn|>' + m['role'] + '\\n' + m['content'] + '<|stop|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"
)
VOCAB = 264  # two rows more than there are tokens
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "vocab_size": VOCAB,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tokenizer_json() -> str:
    """The text of tokenizer.json."""
    letters = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
    tokens = [*CONTROL, "<tool>", *letters, "he", "\u0120t"]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    added = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token in CONTROL,
        }
        for token_id, token in enumerate(tokens[:4])
    ]
    model = {
        "type": "BPE",
        "vocab": {token: token_id for token_id, token in enumerate(tokens)},
        "merges": [["h", "e"], ["\u0120", "t"]],
    }
    digits = {"type": "Digits", "individual_digits": True}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
            "decoder": byte_level,
            "model": model,
        }
    )


def random_weights(config: dict[str, Any], dtype: str = "float32") -> dict[str, np.ndarray]:
    """By Hugging Face name, in Hugging Face's shapes."""
    rng = np.random.default_rng(0)
    shapes = _shapes(config)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return {name: rng.standard_normal(shape).astype(kind) for name, shape in shapes.items()}


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, ffw = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "post_attention_layernorm": (width,),
    }
    experts = config.get("num_local_experts")
    if experts is None:
        layer |= {"mlp.gate_proj": (ffw, width), "mlp.up_proj": (ffw, width)}
        layer["mlp.down_proj"] = (width, ffw)
    else:  # as Mixtral stores them
        layer["block_sparse_moe.gate"] = (experts, width)
        for number in range(experts):
            expert = f"block_sparse_moe.experts.{number}"
            layer |= {f"{expert}.w1": (ffw, width), f"{expert}.w3": (ffw, width)}
            layer[f"{expert}.w2"] = (width, ffw)
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}.weight": s for name, s in layer.items()}
    shapes["model.norm.weight"] = (width,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    return shapes


def write_tiny(folder: Path, *, dtype: str = "float32", shards: int = 1, **changes: Any) -> Path:
    """Write the folder; `changes` go into config.json."""
    folder.mkdir()
    config = CONFIG | {"torch_dtype": dtype} | changes
    weights = random_weights(config, dtype)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 0], "temperature": 0.6})
    settings = {"bos_token": {"content": CONTROL[1]}, "eos_token": CONTROL[2]}
    write_json(folder / "tokenizer_config.json", settings | {"chat_template": CHAT})
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
    else:
        _write_shards(folder, weights, shards)
    return folder


def _write_shards(folder: Path, weights: dict[str, np.ndarray], shards: int) -> None:
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(weights.items())[number::shards])
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
