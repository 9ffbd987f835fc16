"""Draft heads in numpy over one whole text: a Llama layer over a token and the state before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Weights = Mapping[str, np.ndarray]  # by path in the module
EPSILON, THETA = 1e-5, 10000.0


def rms(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + EPSILON) * scale


def rotated(x: np.ndarray, position: int) -> np.ndarray:
    """Rotate the halves of each head of f64[H, Q] against each other."""
    half = x.shape[-1] // 2
    angle = position * THETA ** (-np.arange(half) / half)
    first, second = x[:, :half], x[:, half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@dataclass(frozen=True)
class Sizes:
    heads: int
    kv_heads: int
    head_dim: int


class PlainLayer:
    """Attention and feed-forward of one token at a time; it keeps the keys and values."""

    def __init__(self, weights: Weights, sizes: Sizes) -> None:
        self.weights = weights
        self.sizes = sizes
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def attended(self, seen: np.ndarray, position: int) -> np.ndarray:
        """The keys and values behind the position are forgotten."""
        s, w = self.sizes, self.weights
        split = np.cumsum([n * s.head_dim for n in (s.heads, s.kv_heads)])
        q, k, v = np.split(w["attention.qkv.linears.0.kernel"] @ seen, split)
        q, k, v = (part.reshape(-1, s.head_dim) for part in (q, k, v))
        self.keys[position:] = [rotated(k, position)]
        self.values[position:] = [v]
        q, group = rotated(q, position), s.heads // s.kv_heads
        mixed: list[np.ndarray] = []
        for head in range(s.heads):
            keys = np.stack([each[head // group] for each in self.keys])
            scores = keys @ q[head] * s.head_dim**-0.5
            chances = np.exp(scores - scores.max())
            values = np.stack([each[head // group] for each in self.values])
            mixed.append(chances / chances.sum() @ values)
        return w["attention.out.kernel"] @ np.concatenate(mixed)

    def fed_forward(self, x: np.ndarray) -> np.ndarray:
        w = self.weights
        gate, up = np.split(w["ffw.gate_up.linears.0.kernel"] @ x, 2)
        return w["ffw.down.kernel"] @ (gate / (1 + np.exp(-gate)) * up)

    def followed(self, x: np.ndarray, position: int) -> np.ndarray:
        """A usual layer, of one token."""
        w = self.weights
        x = x + self.attended(rms(x, w["before_attention.scale"]), position)
        return x + self.fed_forward(rms(x, w["before_ffw.scale"]))


class PlainPrediction:
    """The head of DeepSeek-V3: norms, a projection, a layer, a norm; `model` gives the rest."""

    def __init__(self, weights: Weights, sizes: Sizes) -> None:
        self.weights = weights
        numbers = sorted({name.split(".")[1] for name in weights if name.startswith("layers.")})
        self.layer, *self.further = (
            PlainLayer(_below(weights, f"layers.{number}."), sizes) for number in numbers
        )

    def kept(self, shown: np.ndarray) -> np.ndarray:
        return shown

    def __call__(self, token: int, before: np.ndarray, position: int) -> np.ndarray:
        w = self.weights
        vector = w["embedding.table"][token] * (position > 0)
        parts = [rms(vector, w["token_norm.scale"]), rms(before, w["hidden_norm.scale"])]
        x = self.layer.followed(w["projection.kernel"] @ np.concatenate(parts), position)
        return rms(x, w["final_norm.scale"])

    def token(self, hidden: np.ndarray) -> int:
        return int((self.weights["head.kernel"] @ hidden).argmax())


class PlainEagle(PlainPrediction):
    """The head of EAGLE-3: attention reads the token beside the state, which the layer adds to."""

    adds_to_norm = False

    def kept(self, shown: np.ndarray) -> np.ndarray:
        norm = self.weights.get("fusion_norm.scale")
        return (shown if norm is None else rms(shown, norm)) @ self.weights["fusion.kernel"].T

    def __call__(self, token: int, before: np.ndarray, position: int) -> np.ndarray:
        w, inner = self.weights, self.layer.weights
        vector = w["embedding.table"][token] * (position > 0)
        parts = [rms(vector, inner["token_norm.scale"]), rms(before, inner["hidden_norm.scale"])]
        x = parts[1] if self.adds_to_norm else before
        x = x + self.layer.attended(np.concatenate(parts), position)
        x = x + self.layer.fed_forward(rms(x, inner["before_ffw.scale"]))
        for layer in self.further:
            x = layer.followed(x, position)
        return x

    def token(self, hidden: np.ndarray) -> int:
        w = self.weights
        found = int((w["head.kernel"] @ rms(hidden, w["final_norm.scale"])).argmax())
        return found + int(w["offset"][found])


class NormedEagle(PlainEagle):
    """A head whose layer adds to the normalised state."""

    adds_to_norm = True


def _below(weights: Weights, prefix: str) -> Weights:
    return {n.removeprefix(prefix): each for n, each in weights.items() if n.startswith(prefix)}


def drafted(head: PlainPrediction, tokens: list[int], shown: np.ndarray, count: int) -> list[int]:
    """The draft tokens behind a text; shown: f64[n - 1, W], of all tokens but the last."""
    kept = head.kept(shown)
    for position, token in enumerate(tokens[:-1]):
        head(token, kept[max(position - 1, 0)], position)
    made, last, before = list[int](), tokens[-1], kept[-1]
    for position in range(len(tokens) - 1, len(tokens) - 1 + count):
        before = head(last, before, position)
        last = head.token(before)
        made.append(last)
    return made
