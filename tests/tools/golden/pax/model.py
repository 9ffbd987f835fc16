"""What Praxis computes from the variables of a model, in plain numpy and one token after another.

Source: `praxis.layers` (attentions, embedding_softmax, normalizations, transformers) and the layers
of Saxml. Float64, whole score rows and loops over heads: nothing here is like the server's code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from tests.golden.random_tensor import random_tensor, uniform
from tests.tools.golden.pax.cases import TOKENS, PaxCase

Variables = Mapping[str, np.ndarray]
_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def variables_of(case: PaxCase) -> dict[str, np.ndarray]:
    """The model's variables, in the format in which they are stored."""
    return {
        path: _numbers(path, shape).astype(_DTYPES[case.dtype])
        for path, shape in case.shapes.items()
    }


def _numbers(path: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers that keep a signal's size, drawn layer by layer."""
    if ".repeat." not in path:
        return _of_layer(path, shape)
    return np.stack([_of_layer(f"{path} {number}", shape[1:]) for number in range(shape[0])])


def _of_layer(name: str, shape: tuple[int, ...]) -> np.ndarray:
    numbers = random_tensor(name, shape)
    if len(shape) == 1:
        return numbers
    summed = shape[1:] if ".post.w" in name else shape[-3:-2] or shape[:1]
    return numbers * math.sqrt(shape[-1] / math.prod(summed))


def prompt_of(case: PaxCase) -> np.ndarray:
    """i64[S]."""
    return 3 + (uniform(f"prompt of pax {case.name}", TOKENS) * (case.vocab - 3)).astype(np.int64)


def logits_of(case: PaxCase, variables: Variables, prompt: np.ndarray) -> np.ndarray:
    """f64[S, V]."""
    wide = {path: np.asarray(values, np.float64) for path, values in variables.items()}
    x = _embedded(case, wide, prompt)
    for number in range(case.layers):
        x = _layer(case, _of(case, wide, number), x)
    x = _norm(case, wide, "final_ln", x)
    if case.kind == "gemma":
        return x @ wide["softmax.w"].T
    logits = x @ wide["softmax.logits_ffn.linear.w"]
    logits = logits + wide.get("softmax.logits_ffn.bias.b", 0.0)
    cap = case.logits_cap
    return cap * np.tanh(logits / cap) if case.kind == "lm_cloud" else logits


def _of(case: PaxCase, variables: Variables, number: int) -> dict[str, np.ndarray]:
    """The variables of one layer."""
    stem = (
        "transformer.repeat.sub.x_layers_0." if case.stacked else f"transformer.x_layers_{number}."
    )
    found = {p.removeprefix(stem): v for p, v in variables.items() if p.startswith(stem)}
    return {path: values[number] for path, values in found.items()} if case.stacked else found


def _embedded(case: PaxCase, variables: Variables, prompt: np.ndarray) -> np.ndarray:
    if case.kind in ("llama", "gptj"):
        return variables["embedding_lookup.emb_var"][prompt]
    if case.kind == "gemma":
        return variables["softmax.w"][prompt] * math.sqrt(case.embed)
    x = variables["softmax.logits_ffn.linear.w"].T[prompt]
    if case.kind == "c4":
        return x + variables["position_emb.emb_var"][: len(prompt)]
    return x * math.sqrt(case.embed) + _sines(len(prompt), case.embed)


def _sines(count: int, size: int) -> np.ndarray:
    half = size // 2
    step = math.log(10000.0) / max(half - 1, 1)
    angles = np.arange(count)[:, None] * np.exp(np.arange(half) * -step)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _layer(case: PaxCase, variables: Variables, x: np.ndarray) -> np.ndarray:
    normed = _norm(case, variables, "layer_norm", x)
    attended = _attention(case, variables, normed)
    if case.kind == "gptj":
        return x + attended + _feed_forward(case, variables, normed)
    x = x + attended
    return x + _feed_forward(case, variables, _norm(case, variables, "ff_layer.layer_norm", x))


def _norm(case: PaxCase, variables: Variables, path: str, x: np.ndarray) -> np.ndarray:
    """Scales of Llama and GPT-J are `direct`, all others are stored minus one."""
    scale = variables[f"{path}.scale"] + (0.0 if case.kind in ("llama", "gptj") else 1.0)
    if case.kind in ("llama", "gemma"):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + case.epsilon) * scale
    centred = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + case.epsilon)
    return centred / spread * scale + variables[f"{path}.bias"]


def _feed_forward(case: PaxCase, variables: Variables, x: np.ndarray) -> np.ndarray:
    up = x @ variables["ff_layer.ffn_layer1.linear.w"]
    down = variables["ff_layer.ffn_layer2.linear.w"]
    if case.kind in ("llama", "gemma"):
        gate = x @ variables["ff_layer.ffn_layer1_gate.linear.w"]
        opened = gate / (1 + np.exp(-gate)) if case.kind == "llama" else _gelu(gate)
        return (opened * up) @ down
    hidden = _gelu(up + variables["ff_layer.ffn_layer1.bias.b"])
    return hidden @ down + variables["ff_layer.ffn_layer2.bias.b"]


def _gelu(x: np.ndarray) -> np.ndarray:
    """The tanh approximation, which is Praxis' default."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _attention(case: PaxCase, variables: Variables, x: np.ndarray) -> np.ndarray:
    q, k, v = _projected(case, variables, x)
    q = _scaled(case, variables, _rotated(case, q))
    k = _rotated(case, k)
    post, shared = variables["self_attention.post.w"], case.heads // k.shape[1]
    out = np.zeros_like(x)
    for head in range(case.heads):
        keys, values = k[:, head // shared], v[:, head // shared]
        for at in range(len(x)):
            scores = keys[: at + 1] @ q[at, head]
            if case.kind == "lm_cloud":
                scores = case.attention_cap * np.tanh(scores / case.attention_cap)
            weights = np.exp(scores - scores.max())
            out[at] += post[:, head] @ (weights / weights.sum() @ values[: at + 1])
    return out + variables.get("self_attention.post.b", 0.0)


def _projected(
    case: PaxCase, variables: Variables, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values, each f64[S, heads, H]."""
    if case.kv_heads is None:
        made = np.einsum("sd,cdnh->csnh", x, variables["self_attention.combined_qkv.w"])
        if case.kind == "c4":
            made = made + variables["self_attention.combined_qkv.b"][:, None]
        return made[0], made[1], made[2]
    found = []
    for name in ("query", "key", "value"):
        w = variables[f"self_attention.{name}.w"]
        found.append(np.einsum("sd,dnh->snh", x, w if w.ndim == 3 else w[:, None]))
    return found[0], found[1], found[2]


def _scaled(case: PaxCase, variables: Variables, q: np.ndarray) -> np.ndarray:
    q = q / math.sqrt(case.head_dim)
    if case.kind != "lm_cloud":
        return q
    learned = variables["self_attention.per_dim_scale.per_dim_scale"]
    return q * 1.442695041 * np.log1p(np.exp(learned))


def _rotated(case: PaxCase, x: np.ndarray) -> np.ndarray:
    """Llama and GPT-J rotate neighbours, Gemma the halves of a head; the others nothing."""
    if case.kind in ("lm_cloud", "c4"):
        return x
    size = case.rotary or case.head_dim
    out = x.copy()
    for at in range(len(x)):
        for i in range(size // 2):
            pair = [i, i + size // 2] if case.kind == "gemma" else [2 * i, 2 * i + 1]
            angle = at / case.base ** (2 * i / size)
            a, b = x[at, :, pair[0]], x[at, :, pair[1]]
            out[at, :, pair[0]] = a * math.cos(angle) - b * math.sin(angle)
            out[at, :, pair[1]] = b * math.cos(angle) + a * math.sin(angle)
    return out
