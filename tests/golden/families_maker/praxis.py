"""Saxml's own families, which transformers does not have: a plain torch decoder from their recipe.

LmCloudSpmd: sinusoidal positions added to embeddings times sqrt(D), biases in the feed-forward and
the output but none in attention, attention logits capped at 50 and output logits at 30. C4SpmdGpt3:
trained positions, embeddings as they are, biases everywhere but in the output, no caps. Both:
LayerNorm before, combined QKV, tanh GELU, tied embedding. Source: the recipes named in SOURCES.

Written over whole [S, S] score matrices and loops over heads: nothing here is like the server's
code but the names of the weights, which are the paths in its modules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import gelu, layer_norm

from tests.golden.families_maker.case import Shapes
from tests.golden.random_tensor import random_tensor, uniform

SOURCES = {
    "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest": "github.com/google/saxml lm_cloud.py",
    "saxml.server.pax.lm.params.c4.C4SpmdGpt3AdamOrgHP": "github.com/google/paxml params/c4.py",
}
TOKENS = 24
LEAST_CHANGE = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class PraxisCase:
    """The sizes of one shrunken model, and what its recipe switches on."""

    name: str
    path: str  # of the model in Saxml
    layers: int
    embed: int
    ffw: int
    heads: int
    head_dim: int
    vocab: int
    trained_positions: int = 0  # rows of the table; 0: sines
    biased: bool = False  # attention
    biased_head: bool = False
    epsilon: float
    attention_cap: float | None = None
    logits_cap: float | None = None

    @property
    def overrides(self) -> dict[str, str]:
        """As a publish gives them: JSON texts."""
        sizes = {
            "NUM_LAYERS": self.layers,
            "MODEL_DIMS": self.embed,
            "HIDDEN_DIMS": self.ffw,
            "NUM_HEADS": self.heads,
            "DIMS_PER_HEAD": self.head_dim,
            "VOCAB_SIZE": self.vocab,
        }
        if self.trained_positions:
            sizes["TRAINABLE_PE_MAX_SEQ_LEN"] = self.trained_positions
        return {key: str(size) for key, size in sizes.items()}

    @property
    def shapes(self) -> Shapes:
        shapes: Shapes = {"embedding.table": (self.vocab, self.embed)}
        if self.trained_positions:
            shapes["positions.table"] = (self.trained_positions, self.embed)
        for i in range(self.layers):
            shapes |= self._layer(f"layers.{i}")
        if self.biased_head:
            shapes["head.bias"] = (self.vocab,)
        return shapes | _norm("final_norm", self.embed)

    def _layer(self, prefix: str) -> Shapes:
        width = self.heads * self.head_dim
        sizes = {
            "qkv": (3 * width, self.embed),
            "out": (self.embed, width),
            "up": (self.ffw, self.embed),
            "down": (self.embed, self.ffw),
        }
        shapes: Shapes = {f"{prefix}.{name}.kernel": size for name, size in sizes.items()}
        biased = sizes if self.biased else ("up", "down")
        shapes |= {f"{prefix}.{name}.bias": sizes[name][:1] for name in biased}
        for name in ("before_attention", "before_ffw"):
            shapes |= _norm(f"{prefix}.{name}", self.embed)
        return shapes


CASES = [
    PraxisCase(
        name="lm_cloud",
        path="saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest",
        layers=2,
        embed=32,
        ffw=64,
        heads=2,
        head_dim=16,
        vocab=97,
        epsilon=1e-6,
        biased_head=True,
        attention_cap=50.0,
        logits_cap=30.0,
    ),
    PraxisCase(
        name="lm_cloud_odd_heads",
        path="saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest",
        layers=3,
        embed=48,
        ffw=80,
        heads=4,
        head_dim=10,
        vocab=101,
        epsilon=1e-6,
        biased_head=True,
        attention_cap=50.0,
        logits_cap=30.0,
    ),
    PraxisCase(
        name="c4_spmd_gpt3",
        path="saxml.server.pax.lm.params.c4.C4SpmdGpt3AdamOrgHP",
        layers=2,
        embed=48,
        ffw=64,
        heads=4,
        head_dim=12,
        vocab=97,
        trained_positions=40,
        biased=True,
        epsilon=1e-5,
    ),
]


def outputs_of(case: PraxisCase) -> dict[str, np.ndarray]:
    """What golden.npz holds. Raises AssertionError if a cap does nothing."""
    span = case.vocab - 3
    prompt = 3 + (uniform(f"prompt of {case.name}", TOKENS) * span).astype(np.int64)
    weights = {
        name: torch.from_numpy(random_tensor(name, shape)) for name, shape in case.shapes.items()
    }
    found = _logits(case, weights, torch.from_numpy(prompt))
    for cap in ("attention_cap", "logits_cap"):
        if getattr(case, cap) is not None:
            uncapped = replace(case, **{cap: None})
            other = _logits(uncapped, weights, torch.from_numpy(prompt))
            changed = (other - found).abs().max() / found.abs().max()
            assert changed > LEAST_CHANGE, f"{case.name}: {cap} changes the logits by {changed}"
    return {"prompt": prompt, "logits": found.numpy()}


def how(case: PraxisCase) -> str:
    return (
        f"python -m tests.golden.make_families {case.name}; torch {torch.__version__} (CPU), "
        f"float32, families_maker/praxis.py after {SOURCES[case.path]}, weights from random_tensor"
    )


def _logits(
    case: PraxisCase, weights: Mapping[str, torch.Tensor], prompt: torch.Tensor
) -> torch.Tensor:
    """f32[S, V]."""
    x = weights["embedding.table"][prompt]
    if case.trained_positions:
        x = x + weights["positions.table"][: len(prompt)]
    else:
        x = x * math.sqrt(case.embed) + _sines(len(prompt), case.embed)
    for i in range(case.layers):
        x = x + _attention(case, weights, f"layers.{i}", x)
        up = _dense(weights, f"layers.{i}.up", _normed(case, weights, f"layers.{i}.before_ffw", x))
        x = x + _dense(weights, f"layers.{i}.down", gelu(up, approximate="tanh"))
    logits = _normed(case, weights, "final_norm", x) @ weights["embedding.table"].T
    if case.biased_head:
        logits = logits + weights["head.bias"]
    return _capped(logits, case.logits_cap)


def _attention(
    case: PraxisCase, weights: Mapping[str, torch.Tensor], prefix: str, x: torch.Tensor
) -> torch.Tensor:
    normed = _normed(case, weights, f"{prefix}.before_attention", x)
    q, k, v = _dense(weights, f"{prefix}.qkv", normed).chunk(3, dim=-1)
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    mixed = []
    for head in range(case.heads):
        at = slice(head * case.head_dim, (head + 1) * case.head_dim)
        scores = _capped(q[:, at] @ k[:, at].T / math.sqrt(case.head_dim), case.attention_cap)
        mixed.append(scores.masked_fill(later, float("-inf")).softmax(-1) @ v[:, at])
    return _dense(weights, f"{prefix}.out", torch.cat(mixed, dim=-1))


def _sines(count: int, size: int) -> torch.Tensor:
    """Wavelengths from 2 pi to 10000 times that: sines in the first half, cosines in the second."""
    half = size // 2
    table = torch.empty(count, size)
    for position in range(count):
        for i in range(half):
            angle = position * math.exp(-i * math.log(10000.0) / (half - 1))
            table[position, i], table[position, half + i] = math.sin(angle), math.cos(angle)
    return table


def _dense(weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    y = x @ weights[f"{name}.kernel"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def _normed(
    case: PraxisCase, weights: Mapping[str, torch.Tensor], name: str, x: torch.Tensor
) -> torch.Tensor:
    scale, bias = weights[f"{name}.scale"], weights[f"{name}.bias"]
    return layer_norm(x, (case.embed,), scale, bias, case.epsilon)


def _capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    return x if cap is None else cap * torch.tanh(x / cap)


def _norm(name: str, size: int) -> Shapes:
    return {f"{name}.scale": (size,), f"{name}.bias": (size,)}
