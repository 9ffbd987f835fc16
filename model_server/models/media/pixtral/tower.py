"""Pixtral's tower: images of their own proportions, rotated by row and column.

Source: Agrawal et al. 2024 (arXiv:2410.07073); names and config keys are those of Hugging Face's
`PixtralVisionModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import LiveRows, RmsNorm, live_of, project, run_layer
from model_server.models.layers.rope import Rope, rope_frequencies
from model_server.models.media.tower_layer import TowerAttention, TowerLayer, axial_theta
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "pixtral",
    (
        "head_dim",
        "hidden_act",
        "hidden_size",
        "image_size",
        "intermediate_size",
        "num_attention_heads",
        "num_channels",
        "num_hidden_layers",
        "patch_size",
        "rope_parameters",
        "rope_theta",
    ),
    ignored("vocab_size", "projection_dim"),  # of the text model that it was published with
)
_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "image_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 16,
}
_EPSILON = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralConfig:
    layers: int
    embed: int
    ffw: int
    heads: int
    image: int  # most pixels of a side
    patch: int  # pixels of a side
    activation: Activation
    rope: Rope
    # Queries and keys as Mistral stores them, under its names: pairs lie side by side.
    interleaved: bool = False

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], *, interleaved: bool = False) -> PixtralConfig:
        """Parse `vision_config`. Raises CheckpointError for unsupported settings."""
        keys = ConfigKeys(config, KEYS, _DEFAULTS)
        keys.only("num_channels", 3)
        heads, embed = keys.whole("num_attention_heads"), keys.whole("hidden_size")
        if embed % (4 * heads):
            raise CheckpointError(
                f"vision_config has hidden_size {embed} for {heads} heads; a head must have a "
                "multiple of 4 numbers, half of which are rotated by rows"
            )
        keys.only("head_dim", embed // heads)
        return cls(
            layers=keys.whole("num_hidden_layers"),
            embed=embed,
            ffw=keys.whole("intermediate_size"),
            heads=heads,
            image=keys.whole("image_size"),
            patch=keys.whole("patch_size"),
            activation=activation_of(keys.get("hidden_act")),
            rope=replace(_rope(keys, embed // heads), interleaved=interleaved),
            interleaved=interleaved,
        )


def _rope(keys: ConfigKeys, size: int) -> Rope:
    """Return the rope over rows and columns, which take turns. Raises CheckpointError."""
    theta = axial_theta(keys, "pixtral")
    each = rope_frequencies(size, theta).tolist()
    rows, columns = each[::2], each[1::2]
    return Rope(frequencies=(*rows, *columns), axes=(0,) * len(rows) + (1,) * len(columns))


class PixtralTower(nnx.Module):
    """Maps patches of images to a vector each."""

    def __init__(self, config: PixtralConfig, prefix: str, form: WeightForm) -> None:
        self.rope = config.rope
        self.live: LiveRows = nnx.data(None)
        self.kernel = weight(
            (config.embed, 3, config.patch, config.patch),
            (None, None, None, None),
            (f"{prefix}.patch_conv.weight",),
            dtype=form.dtype,
            spread=0.02,
        )
        self.norm = _norm(config, f"{prefix}.ln_pre")
        names = (f"{prefix}.transformer.layers.{index}" for index in range(config.layers))
        self.layers = nnx.List([_layer(config, name, form) for name in names])

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S, P, C] at rows and columns i32[S, P, 2] to f32[S, P, D]."""
        images, count, size = pieces.shape
        kernel = self.kernel[...].reshape(-1, size)
        x = self.norm(project(pieces.reshape(-1, size), kernel, live_of(self)))
        rotation = self.rope.at(places.reshape(-1, 2).T)
        for layer in self.layers:
            x = run_layer(layer, x, lengths, rotation)
        return x.reshape(images, count, -1)


def _layer(config: PixtralConfig, name: str, form: WeightForm) -> TowerLayer:
    sources = AttentionSources.hugging_face(f"{name}.attention")
    if config.interleaved:
        q, k = ((f"{name}.attention.{each}.weight",) for each in ("wq", "wk"))
        sources = replace(sources, q=q, k=k)
    ffw = GatedFeedForward.hugging_face(
        config.embed, config.ffw, f"{name}.feed_forward", activation=config.activation, form=form
    )
    return TowerLayer(
        _norm(config, f"{name}.attention_norm"),
        TowerAttention(config.embed, config.heads, sources, form),
        _norm(config, f"{name}.ffn_norm"),
        ffw,
    )


def _norm(config: PixtralConfig, name: str) -> RmsNorm:
    return RmsNorm(config.embed, (f"{name}.weight",), epsilon=_EPSILON)
