"""The LmCloudSpmd models of the Saxml tutorials: a plain decoder, as the Praxis library builds it.

Pre-norm, fused QKV, ungated GELU, tied embedding. Source: the recipe of
`saxml.server.pax.lm.params.lm_cloud`: sinusoidal positions, no biases in attention, attention
logits soft-capped at 50 and output logits at 30. A Pax checkpoint's variables are read under these
tensor names (`checkpoints/orbax/pax`); checkpoint "None" draws random weights keyed by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.layers import Embedding, LayerNorm
from model_server.models.layers.positions import LearnedPositions, PositionedDecoder, Sinusoids
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.recipe import ModelClass, Recipe, head_cache, serving
from model_server.models.saxml.saxml_class import (
    SaxmlArchitecture,
    Values,
    mesh,
    pax_keys,
    saxml_class,
    sizes,
)
from model_server.models.weights.source import Tensor, WeightSource, cut
from model_server.models.weights.stage import Stage
from model_server.models.weights.weight import WeightForm, weight


def configure(config: Values | None, values: Values) -> Recipe:
    assert config is not None, "a Saxml class brings its own sizes"
    embed, heads, head_dim = config["MODEL_DIMS"], config["NUM_HEADS"], config["DIMS_PER_HEAD"]
    decoder = PraxisDecoder(
        layers=config["NUM_LAYERS"],
        embed=embed,
        ffw=config["HIDDEN_DIMS"],
        heads=heads,
        head_dim=head_dim,
        vocab=config["VOCAB_SIZE"],
        biased=False,
        biased_head=True,
        epsilon=1e-6,
        positions=None,
        embedding_scale=embed**0.5,
        attention_softcap=50.0,
        logits_softcap=30.0,
    )
    return Recipe(
        build=decoder.build,
        cache=head_cache(layers=decoder.layers, heads=heads, kv_heads=heads, head_dim=head_dim),
        embed=embed,
        vocab=decoder.vocab,
        **serving(values, config["CONTEXT"]),
    )


_ARCHITECTURE = SaxmlArchitecture(configure=configure, keys=pax_keys("saxml_lm_cloud"))
# Saxml feeds the 2B models the 1,000 pieces of a test vocabulary; with random weights here they
# read bytes.
_2B = sizes(18, 3072, 12288, 24)
_175B = {
    **sizes(96, 12288, 49152, 96),
    "QUANTIZE": "int8",
    "INPUT_SEQ_LEN": 128,
    "MAX_DECODE_STEPS": 128,
    "NUM_SAMPLES": 1,
    "TEMPERATURE": 0.5,
    "TOP_P": 0.95,
}
_CLASSES: Mapping[str, Values] = {
    "LmCloudSpmd2B": {**_2B, **mesh(4)},
    "LmCloudSpmd2BTest": {**_2B, **mesh(1)},
    "LmCloudSpmd2B4Test": {**_2B, **mesh(4)},
    "LmCloudSpmd2B8Test": {**_2B, **mesh(8)},
    "LmCloudSpmd2B16Test": {**_2B, **mesh(16)},
    "LmCloudSpmd2B32Test": {**_2B, **mesh(32)},
    "LmCloudSpmd175B": {**_175B, **mesh(16)},
    "LmCloudSpmd175BTest": {**_175B, **mesh(16)},
    "LmCloudSpmd175B32Test": {**_175B, **mesh(32)},
    "LmCloudSpmd175B64Test": {**_175B, **mesh(64)},
    "LmCloudSpmd175B128Test": {**_175B, **mesh(128)},
    "LmCloudSpmd175B256Test": {**_175B, **mesh(256)},
}


def model_classes() -> list[ModelClass]:
    return [
        saxml_class("lm_cloud", name, _ARCHITECTURE, values) for name, values in _CLASSES.items()
    ]


class BiasedDecoder(PositionedDecoder):
    """A decoder whose logits have a bias, although its head is the embedding."""

    def __init__(self, *, vocab: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.bias = weight((vocab,), ("vocab",), ("head.bias",), dtype=jnp.float32, spread=0.0)

    def made_logits(self, hidden: jax.Array) -> jax.Array:
        made = super().made_logits(hidden)
        return made + lax.broadcast_to_rank(self.bias[...], made.ndim)

    def keep(self, stage: Stage) -> None:
        super().keep(stage)
        if not stage.is_last:
            del self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class PraxisDecoder:
    """Sizes of one model, and the options in which the two recipes differ."""

    layers: int
    embed: int
    ffw: int
    heads: int
    head_dim: int
    vocab: int
    biased: bool  # the projections of attention; those of the feed-forward always are
    biased_head: bool
    epsilon: float  # of the norms
    positions: int | None  # rows of a table of learned positions; None: sinusoids
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logits_softcap: float | None = None

    def build(self, form: WeightForm) -> PositionedDecoder:
        made, bias = (
            (BiasedDecoder, {"vocab": self.vocab}) if self.biased_head else (PositionedDecoder, {})
        )
        return made(
            embedding=Embedding(self.vocab, self.embed, ("embedding.table",), form=form),
            positions=self._positions(form),
            layers=[self._layer(f"layers.{index}", form) for index in range(self.layers)],
            final_norm=self._norm("final_norm"),
            head=None,
            ropes=[None] * self.layers,
            embedding_scale=self.embedding_scale,
            logits_softcap=self.logits_softcap,
            **bias,
        )

    def _positions(self, form: WeightForm) -> LearnedPositions | Sinusoids:
        if self.positions is None:
            return Sinusoids(self.embed)
        return LearnedPositions(self.positions, self.embed, ("positions.table",), form=form)

    def _layer(self, name: str, form: WeightForm) -> PreNormLayer:
        return PreNormLayer(
            self._norm(f"{name}.before_attention"),
            self._attention(name, form),
            self._norm(f"{name}.before_ffw"),
            self._feed_forward(name, form),
        )

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(self.embed, (f"{name}.scale",), (f"{name}.bias",), epsilon=self.epsilon)

    def _attention(self, name: str, form: WeightForm) -> Attention:
        width = self.heads * self.head_dim
        shape = AttentionShape(
            embed=self.embed,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            softcap=self.attention_softcap,
        )

        def third(part: str, index: int) -> WeightSource:
            whole = Tensor(f"{name}.qkv.{part}")
            return cut(whole, index * width, (index + 1) * width, of=3 * width)

        biases = third("bias", 0), third("bias", 1), third("bias", 2)
        sources = AttentionSources(
            q=third("kernel", 0),
            k=third("kernel", 1),
            v=third("kernel", 2),
            out=(f"{name}.out.kernel",),
            biases=biases if self.biased else None,
            out_bias=(f"{name}.out.bias",) if self.biased else None,
        )
        return Attention(shape, sources, form)

    def _feed_forward(self, name: str, form: WeightForm) -> FeedForward:
        return FeedForward(
            self.embed,
            self.ffw,
            up=(f"{name}.up.kernel",),
            down=(f"{name}.down.kernel",),
            activation=jax.nn.gelu,
            form=form,
            biases=((f"{name}.up.bias",), (f"{name}.down.bias",)),
        )
