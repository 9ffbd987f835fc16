"""Variables of Praxis made from the tensors of golden families, in plain numpy.

As the converters in `saxml/tools` make them of published checkpoints: heads are axes of their own,
matrices are [in, out], Llama's rotary pairs are neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]


def of_llama(tensors: Tensors, config: dict[str, Any], *, paired: bool = True) -> Tensors:
    """Also of Gemma, whose pairs are halves and whose softmax is the embedding."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    embedding = tensors["model.embed_tokens.weight"]
    found: Tensors = {"final_ln.scale": tensors["model.norm.weight"]}
    if config["model_type"] == "gemma":
        found["softmax.w"] = embedding
    else:
        found["embedding_lookup.emb_var"] = embedding
        head = tensors.get("lm_head.weight", embedding)
        found["softmax.logits_ffn.linear.w"] = head.T
    for layer in range(config["num_hidden_layers"]):

        def of(name: str, layer: int = layer) -> np.ndarray:
            return tensors[f"model.layers.{layer}.{name}.weight"]

        stem = f"transformer.x_layers_{layer}"
        qkv = [
            _heads(of("self_attn.q_proj"), heads, paired=paired),
            _heads(of("self_attn.k_proj"), kv_heads, paired=paired),
            _heads(of("self_attn.v_proj"), kv_heads),
        ]
        found |= _projections(f"{stem}.self_attention", qkv, of("self_attn.o_proj"), heads)
        found[f"{stem}.layer_norm.scale"] = of("input_layernorm")
        found[f"{stem}.ff_layer.layer_norm.scale"] = of("post_attention_layernorm")
        found[f"{stem}.ff_layer.ffn_layer1_gate.linear.w"] = of("mlp.gate_proj").T
        found[f"{stem}.ff_layer.ffn_layer1.linear.w"] = of("mlp.up_proj").T
        found[f"{stem}.ff_layer.ffn_layer2.linear.w"] = of("mlp.down_proj").T
    return found


def of_gptj(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    found: Tensors = {
        "embedding_lookup.emb_var": tensors["transformer.wte.weight"],
        "softmax.logits_ffn.linear.w": tensors["lm_head.weight"].T,
        "softmax.logits_ffn.bias.b": tensors["lm_head.bias"],
        "final_ln.scale": tensors["transformer.ln_f.weight"],
        "final_ln.bias": tensors["transformer.ln_f.bias"],
    }
    for layer in range(config["n_layer"]):
        stem, theirs = f"transformer.x_layers_{layer}", f"transformer.h.{layer}"
        qkv = [_heads(tensors[f"{theirs}.attn.{x}_proj.weight"], config["n_head"]) for x in "qkv"]
        out = tensors[f"{theirs}.attn.out_proj.weight"]
        found |= _projections(f"{stem}.self_attention", qkv, out, config["n_head"])
        found[f"{stem}.layer_norm.scale"] = tensors[f"{theirs}.ln_1.weight"]
        found[f"{stem}.layer_norm.bias"] = tensors[f"{theirs}.ln_1.bias"]
        for ours, name in (("ffn_layer1", "fc_in"), ("ffn_layer2", "fc_out")):
            found[f"{stem}.ff_layer.{ours}.linear.w"] = tensors[f"{theirs}.mlp.{name}.weight"].T
            found[f"{stem}.ff_layer.{ours}.bias.b"] = tensors[f"{theirs}.mlp.{name}.bias"]
    return found


def of_praxis(tensors: Tensors, heads: int) -> Tensors:
    """Of LmCloudSpmd and C4SpmdGpt3, with stacked layers and scales minus one."""
    layers = max(int(name.split(".")[1]) for name in tensors if name.startswith("layers.")) + 1
    found: Tensors = {
        "softmax.logits_ffn.linear.w": tensors["embedding.table"].T,
        "final_ln.scale": tensors["final_norm.scale"] - 1,
        "final_ln.bias": tensors["final_norm.bias"],
    }
    if "head.bias" in tensors:
        found["softmax.logits_ffn.bias.b"] = tensors["head.bias"]
    if "positions.table" in tensors:
        found["position_emb.emb_var"] = tensors["positions.table"]
    each = [_plain_layer(tensors, f"layers.{layer}.", heads) for layer in range(layers)]
    stem = "transformer.repeat.sub.x_layers_0."
    return found | {stem + path: np.stack([one[path] for one in each]) for path in each[0]}


def _plain_layer(tensors: Tensors, prefix: str, heads: int) -> Tensors:
    qkv = np.split(tensors[f"{prefix}qkv.kernel"], 3)
    out = tensors[f"{prefix}out.kernel"]
    found = _projections("self_attention", [_heads(each, heads) for each in qkv], out, heads)
    size = out.shape[1] // heads
    if f"{prefix}qkv.bias" in tensors:
        found["self_attention.combined_qkv.b"] = tensors[f"{prefix}qkv.bias"].reshape(
            3, heads, size
        )
        found["self_attention.post.b"] = tensors[f"{prefix}out.bias"]
    else:
        found["self_attention.per_dim_scale.per_dim_scale"] = np.zeros(size, np.float32)
    for norm, name in (("layer_norm", "attention"), ("ff_layer.layer_norm", "ffw")):
        found[f"{norm}.scale"] = tensors[f"{prefix}before_{name}.scale"] - 1
        found[f"{norm}.bias"] = tensors[f"{prefix}before_{name}.bias"]
    for ours, name in (("ffn_layer1", "up"), ("ffn_layer2", "down")):
        found[f"ff_layer.{ours}.linear.w"] = tensors[f"{prefix}{name}.kernel"].T
        found[f"ff_layer.{ours}.bias.b"] = tensors[f"{prefix}{name}.bias"]
    return found


def _heads(weight: np.ndarray, count: int, *, paired: bool = False) -> np.ndarray:
    """[heads * size, in] as [in, heads, size], with rotary halves as neighbours if `paired`."""
    size = len(weight) // count
    split = weight.T.reshape(-1, count, size)
    if not paired:
        return split
    halves = split.reshape(-1, count, 2, size // 2)
    return halves.swapaxes(2, 3).reshape(-1, count, size)


def _projections(stem: str, qkv: list[np.ndarray], out: np.ndarray, heads: int) -> Tensors:
    post = {f"{stem}.post.w": out.reshape(len(out), heads, -1)}
    if qkv[1].shape == qkv[0].shape:
        return post | {f"{stem}.combined_qkv.w": np.stack(qkv)}
    if qkv[1].shape[1] == 1:
        qkv = [qkv[0], qkv[1][:, 0], qkv[2][:, 0]]
    names = ("query", "key", "value")
    return post | {f"{stem}.{name}.w": w for name, w in zip(names, qkv, strict=True)}
