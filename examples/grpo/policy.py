"""A small Llama in plain JAX: its weights under Hugging Face's names, its folder, its gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Weights = dict[str, jax.Array]
HEADS, KV_HEADS, HEAD, WIDTH, FFW, LAYERS = 4, 2, 16, 64, 128, 2
EPS, THETA = 1e-5, 10000.0
CONTROL = ("<|begin|>", "<|end|>")
SPARE = tuple(f"<|spare_{number}|>" for number in range(14))  # up to whole tiles of 16
VOCAB = len(CONTROL) + 256 + len(SPARE)  # control tokens, bytes and spare ones
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": FFW,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 64,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "vocab_size": VOCAB,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight, by its name."""
    layer = {
        "input_layernorm": (WIDTH,),
        "self_attn.q_proj": (HEADS * HEAD, WIDTH),
        "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
        "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * HEAD),
        "post_attention_layernorm": (WIDTH,),
        "mlp.gate_proj": (FFW, WIDTH),
        "mlp.up_proj": (FFW, WIDTH),
        "mlp.down_proj": (WIDTH, FFW),
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, WIDTH)}
    for number in range(LAYERS):
        found |= {f"model.layers.{number}.{name}.weight": s for name, s in layer.items()}
    return found | {"model.norm.weight": (WIDTH,)}


def random_weights(seed: int) -> Weights:
    """Return f32 weights: ones for norms, else normal with a spread of 1 / sqrt(inputs)."""
    draw = np.random.default_rng(seed)
    made: Weights = {}
    for name, shape in shapes().items():
        spread = draw.standard_normal(shape) / np.sqrt(shape[-1]) if len(shape) > 1 else 1.0
        made[name] = jax.device_put(np.broadcast_to(spread, shape).astype(np.float32))
    return made


@jax.jit
def served(weights: Weights) -> Weights:
    """Return the weights as the sampler has them, in bfloat16."""
    return {name: array.astype(jnp.bfloat16) for name, array in weights.items()}


def log_probabilities(weights: Weights, ids: jax.Array) -> jax.Array:
    """f32[B, T - 1, V]: of every token, behind each of i32[B, T] but the last."""
    hidden = weights["model.embed_tokens.weight"][ids]
    for number in range(LAYERS):
        own = {
            name.removeprefix(f"model.layers.{number}.").removesuffix(".weight"): array
            for name, array in weights.items()
            if name.startswith(f"model.layers.{number}.")
        }
        hidden += _attended(own, _normed(hidden, own["input_layernorm"]))
        inner = _normed(hidden, own["post_attention_layernorm"])
        gate = jax.nn.silu(inner @ own["mlp.gate_proj"].T)
        hidden += (gate * (inner @ own["mlp.up_proj"].T)) @ own["mlp.down_proj"].T
    hidden = _normed(hidden, weights["model.norm.weight"])
    return jax.nn.log_softmax(hidden[:, :-1] @ weights["model.embed_tokens.weight"].T)


def _normed(hidden: jax.Array, scale: jax.Array) -> jax.Array:
    mean = jnp.mean(jnp.square(hidden), axis=-1, keepdims=True)
    return hidden * jax.lax.rsqrt(mean + EPS) * scale


def _attended(own: Weights, hidden: jax.Array) -> jax.Array:
    rows, length, _ = hidden.shape

    def heads(name: str, count: int) -> jax.Array:
        return (hidden @ own[f"self_attn.{name}_proj"].T).reshape(rows, length, count, HEAD)

    queries, keys = _turned(heads("q", HEADS)), _turned(heads("k", KV_HEADS))
    keys, values = (jnp.repeat(x, HEADS // KV_HEADS, 2) for x in (keys, heads("v", KV_HEADS)))
    scores = jnp.einsum("bthd,bshd->bhts", queries, keys) / np.sqrt(HEAD)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), values)
    return mixed.reshape(rows, length, HEADS * HEAD) @ own["self_attn.o_proj"].T


def _turned(heads: jax.Array) -> jax.Array:
    half = HEAD // 2
    angles = jnp.arange(heads.shape[1])[:, None] / THETA ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = heads[..., :half], heads[..., half:]
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def _letters() -> list[str]:
    """Return the letter of each byte in a byte-level vocabulary, as GPT-2's."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def ids_of(text: str) -> tuple[int, ...]:
    """Return the token ids of a text: its bytes, behind the control tokens."""
    return tuple(len(CONTROL) + byte for byte in text.encode())


def text_of(ids: tuple[int, ...]) -> str:
    return bytes(max(0, each - len(CONTROL)) % 256 for each in ids).decode(errors="replace")


def write_folder(folder: Path, weights: Weights) -> None:
    """Write a checkpoint that sax serves."""
    from safetensors.flax import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    settings = {"bos_token": CONTROL[0], "eos_token": CONTROL[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    save_file(served(weights), folder / "model.safetensors")


def _tokenizer() -> dict[str, Any]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    vocab = {text: id for id, text in enumerate([*CONTROL, *_letters(), *SPARE])}
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    added = [
        {"id": id, "content": text, "special": True, **dict.fromkeys(flags, False)}
        for text, id in vocab.items()
        if text in CONTROL or text in SPARE
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
