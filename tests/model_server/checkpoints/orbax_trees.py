"""Orbax checkpoints as other programs write them, made with Orbax itself.

The trees are built from Hugging Face's tensors the other way round, in plain numpy.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from tests.model_server.checkpoints.tiny_folder import write_json

Tensors = dict[str, np.ndarray]


def save(folder: Path, tree: Any, *, ocdbt: bool = True, zarr3: bool = False) -> Path:
    """Write a tree with Orbax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
        with ocp.Checkpointer(handler) as checkpointer:
            checkpointer.save(folder.absolute(), tree)
    return folder


def with_config(folder: Path, config: dict[str, Any]) -> Path:
    """Put a config.json beside the arrays."""
    write_json(folder / "config.json", config)
    return folder


def nested(flat: dict[str, np.ndarray], separator: str = "/") -> dict[str, Any]:
    """`a/b` becomes {"a": {"b": ...}}."""
    tree: dict[str, Any] = {}
    for path, values in flat.items():
        *heads, leaf = path.split(separator)
        node = tree
        for head in heads:
            node = node.setdefault(head, {})
        node[leaf] = values
    return tree


def flax_llama(tensors: Tensors) -> dict[str, Any]:
    """As transformers' FlaxLlama: kernels [in, out]."""
    flat: Tensors = {}
    for name, values in tensors.items():
        stem = name.removesuffix(".weight")
        if stem.endswith("embed_tokens"):
            flat[f"{stem}.embedding"] = values
        elif values.ndim == 2:
            flat[f"{stem}.kernel"] = values.T
        else:
            flat[name] = values
    return nested(flat, ".")


def gemma(
    tensors: Tensors, config: dict[str, Any], *, model_first: bool
) -> dict[str, dict[str, np.ndarray]]:
    """As Google's Gemma for Flax: one level, paths as keys; two forms of the gate."""
    heads, size = config["num_attention_heads"], config["head_dim"]
    kv_heads, width = config["num_key_value_heads"], config["hidden_size"]
    padding = np.zeros((3, width), np.float32)
    flat = {
        "transformer/embedder": {
            "input_embedding": np.concatenate([tensors["model.embed_tokens.weight"], padding])
        },
        "transformer/final_norm": {"scale": tensors["model.norm.weight"]},
    }
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"model.layers.{layer}", f"transformer/layer_{layer}"

        def of(name: str, ours: str = ours) -> np.ndarray:
            return tensors[f"{ours}.{name}.weight"]

        def split(name: str, count: int) -> np.ndarray:
            return of(name).reshape(count, size, width).transpose(0, 2, 1)

        keys_values = [split("self_attn.k_proj", kv_heads), split("self_attn.v_proj", kv_heads)]
        queries = split("self_attn.q_proj", heads)
        if heads == kv_heads:
            flat[f"{theirs}/attn/qkv_einsum"] = {"w": np.stack([queries, *keys_values])}
        else:
            flat[f"{theirs}/attn/q_einsum"] = {"w": queries}
            flat[f"{theirs}/attn/kv_einsum"] = {"w": np.stack(keys_values)}
        out = of("self_attn.o_proj").T.reshape(heads, size, width)
        flat[f"{theirs}/attn/attn_vec_einsum"] = {"w": out}
        gate = np.stack([of("mlp.gate_proj"), of("mlp.up_proj")])
        flat[f"{theirs}/mlp/gating_einsum"] = {
            "w": gate.transpose(0, 2, 1) if model_first else gate
        }
        flat[f"{theirs}/mlp/linear"] = {"w": of("mlp.down_proj").T}
        for name, norm in _gemma_norms(config["model_type"]).items():
            flat[f"{theirs}/{norm}"] = {"scale": of(name)}
    return flat


def _gemma_norms(model_type: str) -> dict[str, str]:
    if model_type == "gemma":
        return {
            "input_layernorm": "pre_attention_norm",
            "post_attention_layernorm": "pre_ffw_norm",
        }
    norms = {
        "input_layernorm": "pre_attention_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "pre_ffw_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    if model_type == "gemma3_text":
        norms |= {"self_attn.q_norm": "attn/_query_norm", "self_attn.k_norm": "attn/_key_norm"}
    return norms


def maxtext(tensors: Tensors, config: dict[str, Any], *, scanned: bool) -> dict[str, Any]:
    """As MaxText's Llama: queries divided by the root of the head size."""
    layers = [_maxtext_layer(tensors, config, n) for n in range(config["num_hidden_layers"])]
    decoder: dict[str, Any] = {"decoder_norm": {"scale": tensors["model.norm.weight"]}}
    if "lm_head.weight" in tensors:
        decoder["logits_dense"] = {"kernel": tensors["lm_head.weight"].T}
    if scanned:
        stacked = {path: np.stack([one[path] for one in layers], 1) for path in layers[0]}
        decoder["layers"] = nested(stacked)
    else:
        decoder |= {f"layers_{number}": nested(layer) for number, layer in enumerate(layers)}
    embedding = {"embedding": tensors["model.embed_tokens.weight"]}
    return {"params": {"decoder": decoder, "token_embedder": embedding}}


def _maxtext_layer(tensors: Tensors, config: dict[str, Any], layer: int) -> Tensors:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size, width = config["head_dim"], config["hidden_size"]
    neighbours = (config["rope_scaling"] or {}).get("rope_type") == "llama3"

    def of(name: str) -> np.ndarray:
        return tensors[f"model.layers.{layer}.{name}.weight"]

    def split(name: str, count: int, rotates: bool) -> np.ndarray:
        values = of(name).T.reshape(width, count, size)
        if rotates and neighbours:
            halves = values.reshape(width, count, 2, size // 2)
            values = halves.swapaxes(2, 3).reshape(width, count, size)
        return values

    flat = {
        "self_attention/query/kernel": split("self_attn.q_proj", heads, True) / np.sqrt(size),
        "self_attention/key/kernel": split("self_attn.k_proj", kv_heads, True),
        "self_attention/value/kernel": split("self_attn.v_proj", kv_heads, False),
        "self_attention/out/kernel": of("self_attn.o_proj").T.reshape(heads, size, width),
        "pre_self_attention_layer_norm/scale": of("input_layernorm"),
        "post_self_attention_layer_norm/scale": of("post_attention_layernorm"),
        "mlp/wi_0/kernel": of("mlp.gate_proj").T,
        "mlp/wi_1/kernel": of("mlp.up_proj").T,
        "mlp/wo/kernel": of("mlp.down_proj").T,
    }
    return {path: values.astype(np.float32) for path, values in flat.items()}
