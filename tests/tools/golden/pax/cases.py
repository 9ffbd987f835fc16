"""The shrunken Praxis models of tests/golden/pax: what Saxml serves, as Pax stores it.

Variables are named and shaped as `praxis.layers` and the converters in `saxml/tools` do it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Shapes = dict[str, tuple[int, ...]]
TOKENS = 20
_PACKAGE = "saxml.server.pax.lm.params."


@dataclass(frozen=True, slots=True, kw_only=True)
class PaxCase:
    """The sizes of one model, and the forms of its variables."""

    name: str
    path: str  # of its class in Saxml
    kind: str  # llama, gemma, gptj, lm_cloud or c4
    layers: int = 2
    embed: int = 16
    ffw: int = 24
    heads: int = 4
    head_dim: int = 6
    vocab: int = 61
    kv_heads: int | None = None  # None: as many as heads, all projections in one variable
    positions: int = 0  # rows of a trained table
    rotary: int = 0  # dimensions of a head that are rotated; 0: all
    base: float = 10000.0  # of the rotation
    epsilon: float = 1e-6
    attention_cap: float = 50.0  # of lm_cloud alone, as the next
    logits_cap: float = 30.0
    stacked: bool = False
    dtype: str = "float32"

    @property
    def overrides(self) -> dict[str, str]:
        """As a publish gives them: JSON texts."""
        sizes = {
            "NUM_LAYERS": self.layers,
            "MODEL_DIMS": self.embed,
            "HIDDEN_DIMS": self.ffw,
            "NUM_HEADS": self.heads,
            "DIMS_PER_HEAD": self.head_dim,
        }
        if self.kv_heads:
            sizes["NUM_KV_HEADS"] = self.kv_heads
        if self.positions:
            sizes["TRAINABLE_PE_MAX_SEQ_LEN"] = self.positions
        if self.rotary:
            sizes["ROTARY_DIM"] = self.rotary
        return {key: str(size) for key, size in sizes.items()}

    @property
    def shapes(self) -> Shapes:
        """The variables below `mdl_vars.params.lm.`, by dotted path."""
        shapes = self._top()
        layer = self._attention() | self._feed_forward() | self._norms()
        if self.stacked:
            for path, shape in layer.items():
                shapes[f"transformer.repeat.sub.x_layers_0.{path}"] = (self.layers, *shape)
            return shapes
        for number in range(self.layers):
            for path, shape in layer.items():
                shapes[f"transformer.x_layers_{number}.{path}"] = shape
        return shapes

    def _top(self) -> Shapes:
        shapes: Shapes = {"final_ln.scale": (self.embed,)}
        if self.kind == "gemma":
            return shapes | {"softmax.w": (self.vocab, self.embed)}
        shapes["softmax.logits_ffn.linear.w"] = (self.embed, self.vocab)
        if self.kind in ("llama", "gptj"):
            shapes["embedding_lookup.emb_var"] = (self.vocab, self.embed)
        if self.kind in ("gptj", "lm_cloud"):
            shapes["softmax.logits_ffn.bias.b"] = (self.vocab,)
        if self.kind not in ("llama", "gemma"):
            shapes["final_ln.bias"] = (self.embed,)
        if self.positions:
            shapes["position_emb.emb_var"] = (self.positions, self.embed)
        return shapes

    def _attention(self) -> Shapes:
        embed, heads, size = self.embed, self.heads, self.head_dim
        shapes: Shapes = {"self_attention.post.w": (embed, heads, size)}
        if self.kv_heads is None:
            shapes["self_attention.combined_qkv.w"] = (3, embed, heads, size)
        else:
            shared = (size,) if self.kv_heads == 1 else (self.kv_heads, size)
            shapes["self_attention.query.w"] = (embed, heads, size)
            shapes["self_attention.key.w"] = shapes["self_attention.value.w"] = (embed, *shared)
        if self.kind == "lm_cloud":
            shapes["self_attention.per_dim_scale.per_dim_scale"] = (size,)
        if self.kind == "c4":
            shapes["self_attention.combined_qkv.b"] = (3, heads, size)
            shapes["self_attention.post.b"] = (embed,)
        return shapes

    def _feed_forward(self) -> Shapes:
        shapes: Shapes = {
            "ff_layer.ffn_layer1.linear.w": (self.embed, self.ffw),
            "ff_layer.ffn_layer2.linear.w": (self.ffw, self.embed),
        }
        if self.kind in ("llama", "gemma"):
            return shapes | {"ff_layer.ffn_layer1_gate.linear.w": (self.embed, self.ffw)}
        biases = {"ffn_layer1": self.ffw, "ffn_layer2": self.embed}
        return shapes | {f"ff_layer.{name}.bias.b": (size,) for name, size in biases.items()}

    def _norms(self) -> Shapes:
        norms = ["layer_norm"] if self.kind == "gptj" else ["layer_norm", "ff_layer.layer_norm"]
        parts = ["scale"] if self.kind in ("llama", "gemma") else ["scale", "bias"]
        return {f"{norm}.{part}": (self.embed,) for norm in norms for part in parts}


_STACKED: dict[str, Any] = {"stacked": True, "dtype": "bfloat16"}
_GPTJ: dict[str, Any] = {
    "path": f"{_PACKAGE}gptj.GPTJ",
    "kind": "gptj",
    "rotary": 4,
    "epsilon": 1e-5,
}
_LM_CLOUD: dict[str, Any] = {"path": f"{_PACKAGE}lm_cloud.LmCloudSpmd2B", "kind": "lm_cloud"}
_C4: dict[str, Any] = {
    "path": f"{_PACKAGE}c4.C4SpmdGpt3AdamOrgHP",
    "kind": "c4",
    "positions": 32,
    "epsilon": 1e-5,
}

CASES = [
    PaxCase(name="llama", path=f"{_PACKAGE}lm_cloud.LLaMA7BFP16", kind="llama", epsilon=1e-5),
    PaxCase(
        name="llama3_grouped_stacked_bfloat16",
        path=f"{_PACKAGE}lm_cloud.LLaMA3_8BFP16x1",
        kind="llama",
        layers=3,
        kv_heads=2,
        base=500000.0,
        epsilon=1e-5,
        **_STACKED,
    ),
    PaxCase(name="gptj", **_GPTJ),
    PaxCase(name="gptj_stacked_bfloat16", **_GPTJ, **_STACKED),
    PaxCase(name="gemma_2b", path=f"{_PACKAGE}gemma.Gemma2BFP16", kind="gemma", kv_heads=1),
    PaxCase(
        name="gemma_7b_bfloat16",
        path=f"{_PACKAGE}gemma.Gemma7BFP16",
        kind="gemma",
        dtype="bfloat16",
    ),
    PaxCase(name="lm_cloud_stacked", **_LM_CLOUD, layers=3, stacked=True),
    PaxCase(name="lm_cloud_bfloat16", **_LM_CLOUD, dtype="bfloat16"),
    PaxCase(name="c4_stacked_bfloat16", **_C4, **_STACKED),
    PaxCase(name="c4", **_C4),
]
