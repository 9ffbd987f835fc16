"""SigLIP's tower: square images in pieces, with learned positions; SigLIP 2's of any proportions.

Sources: Zhai et al. 2023 (arXiv:2303.15343), and NaFlex of Tschannen et al. 2025
(arXiv:2502.14786); names and config keys are those of Hugging Face's `SiglipVisionModel` and
`Siglip2VisionModel`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.layers import LayerNorm, LiveRows, live_of, project, run_layer
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.tower_layer import TowerAttention, TowerLayer, dense, plain_ffw
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import BICUBIC, SquareForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "siglip",
    (
        "hidden_act",
        "hidden_size",
        "image_size",
        "intermediate_size",
        "layer_norm_eps",
        "num_attention_heads",
        "num_channels",
        "num_hidden_layers",
        "patch_size",
    ),
    # A head makes one vector of an image, which a language model does not take.
    {**ignored("vision_use_head", "projection_dim"), "num_image_tokens": one_of(None)},
)
# The table of positions is a square of `num_patches`, whatever the proportions of an image.
_NAFLEX_KEYS = KnownKeys(
    "siglip",
    (*(key for key in KEYS.computed if key != "image_size"), "num_patches"),
    KEYS.harmless,
)
_DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 768,
    "image_size": 224,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-6,
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """Sizes of the layers of a tower, of images or of texts."""

    layers: int
    embed: int
    ffw: int
    heads: int
    activation: Activation
    epsilon: float

    @staticmethod
    def read(keys: ConfigKeys) -> dict[str, Any]:
        """Return the values by field. Raises CheckpointError."""
        return {
            "layers": keys.whole("num_hidden_layers"),
            "embed": keys.whole("hidden_size"),
            "ffw": keys.whole("intermediate_size"),
            "heads": keys.whole("num_attention_heads"),
            "activation": activation_of(keys.get("hidden_act")),
            "epsilon": keys.number("layer_norm_eps"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SiglipConfig(LayerSizes):
    image: int  # pixels of a side
    patch: int  # pixels of a side of a piece

    @property
    def side(self) -> int:
        """Pieces of a row or a column; pixels that fill none are not seen."""
        return self.image // self.patch

    @property
    def piece(self) -> int:
        """Numbers of a piece: colour, row and column."""
        return 3 * self.patch * self.patch

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> SiglipConfig:
        """Parse `vision_config`. Raises CheckpointError for unsupported settings."""
        made = cls.from_keys(ConfigKeys(config, KEYS, _DEFAULTS))
        if made.embed % made.heads or made.patch > made.image:
            raise CheckpointError(
                f"vision_config has hidden_size {made.embed} for {made.heads} heads and pieces of "
                f"{made.patch} pixels for images of {made.image}: heads must divide the size, and "
                "a piece must fit"
            )
        return made

    @classmethod
    def of_naflex(cls, config: Mapping[str, Any]) -> SiglipConfig:
        """Parse SigLIP 2's `vision_config`. Raises CheckpointError for unsupported settings."""
        keys = ConfigKeys(config, _NAFLEX_KEYS)
        count, patch = (
            keys.whole("num_patches", 256),
            keys.whole("patch_size", _DEFAULTS["patch_size"]),
        )
        side = math.isqrt(count)
        if side**2 != count:
            raise CheckpointError(
                f"vision_config has num_patches = {count}; positions are a square of them"
            )
        sizes = {key: value for key, value in config.items() if key != "num_patches"}
        return cls.from_hf({**sizes, "image_size": side * patch})

    @classmethod
    def from_keys(cls, keys: ConfigKeys) -> SiglipConfig:
        """Read the sizes, which CLIP's towers have as well. Raises CheckpointError."""
        keys.only("num_channels", 3)
        image, patch = keys.whole("image_size"), keys.whole("patch_size")
        return cls(image=image, patch=patch, **cls.read(keys))


def _norm(config: LayerSizes, name: str) -> LayerNorm:
    return LayerNorm(config.embed, *dense(name), epsilon=config.epsilon)


def siglip_layer(
    config: LayerSizes,
    prefix: str,
    form: WeightForm,
    attention: type[TowerAttention] = TowerAttention,
) -> TowerLayer:
    """Return a layer, of SigLIP or of CLIP, of images or of texts."""
    sources = AttentionSources.hugging_face(
        f"{prefix}.self_attn", biased=True, out_biased=True, out="out_proj"
    )
    up, down = f"{prefix}.mlp.fc1", f"{prefix}.mlp.fc2"
    return TowerLayer(
        _norm(config, f"{prefix}.layer_norm1"),
        attention(config.embed, config.heads, sources, form),
        _norm(config, f"{prefix}.layer_norm2"),
        plain_ffw(config.embed, config.ffw, up, down, config.activation, form),
    )


class SiglipTower(nnx.Module):
    """Maps pieces of images to a vector each."""

    def __init__(
        self,
        config: SiglipConfig,
        prefix: str,
        form: WeightForm,
        kernel_shape: tuple[int, ...] | None = None,
    ) -> None:
        """kernel_shape: of the products with pieces; None: that of a convolution."""
        self.live: LiveRows = nnx.data(None)
        kernel, bias = dense(f"{prefix}.embeddings.patch_embedding")
        shape = kernel_shape or (config.embed, 3, config.patch, config.patch)
        self.kernel = weight(
            shape,
            (None,) * len(shape),
            kernel,
            dtype=form.dtype,
            spread=0.02,
        )
        self.bias = weight((config.embed,), (None,), bias, dtype=jnp.float32, spread=0.0)
        self.positions = weight(
            (config.side**2, config.embed),
            (None, "embed"),
            (f"{prefix}.embeddings.position_embedding.weight",),
            dtype=jnp.float32,
            spread=0.02,
        )
        layers = (f"{prefix}.encoder.layers.{index}" for index in range(config.layers))
        self.layers = nnx.List([siglip_layer(config, each, form) for each in layers])
        self.final_norm = _norm(config, f"{prefix}.post_layernorm")

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S, P, C] at places i32[S, P, K] to f32[S, P, D]."""
        images, count, size = pieces.shape
        kernel = self.kernel[...].reshape(-1, size)
        added = self.bias[...][None] + self.at(places.reshape(-1, places.shape[-1]))
        x = project(pieces.reshape(-1, size), kernel, live_of(self)) + added
        for layer in self.layers:
            x = run_layer(layer, x, lengths)
        return self.final_norm(x).reshape(images, count, -1)

    def at(self, places: jax.Array) -> jax.Array:
        """Return the positions f32[R, D] of pieces; places: i32[R, 1], rows of the table."""
        return self.positions[...].at[places[:, 0]].get(mode="clip")


class NaflexTower(SiglipTower):
    """A tower whose square of positions is resized to the rows and columns of each image."""

    def __init__(self, config: SiglipConfig, prefix: str, form: WeightForm) -> None:
        super().__init__(config, prefix, form, (config.embed, config.piece))
        self.side = config.side

    def at(self, places: jax.Array) -> jax.Array:
        """places: i32[R, 4]: row and column, of so many rows and columns."""
        rows, columns = (
            shares_of(places[:, axis], places[:, axis + 2], self.side) for axis in (0, 1)
        )
        shares = rows[:, :, None] * columns[:, None]
        flat = shares.reshape(-1, self.side**2)
        return jnp.einsum("rn,nd->rd", flat, self.positions[...], precision="highest")


def shares_of(at: jax.Array, count: jax.Array, side: int) -> jax.Array:
    """Return f32[R, side]: what each of `side` numbers adds to number `at` of `count`.

    A triangle around its place, as wide as the larger distance of two numbers, as of torch's
    bilinear interpolation with antialias. at, count: i32[R]; a count of 0 is that of padding.
    """
    scale = side / jnp.maximum(count, 1).astype(jnp.float32)
    middle = (at + 0.5) * scale - 0.5
    away = jnp.abs(jnp.arange(side)[None] - middle[:, None]) / jnp.maximum(scale, 1.0)[:, None]
    shares = jnp.maximum(1.0 - away, 0.0)
    return shares / shares.sum(-1, keepdims=True)


def square_form(read: ImageProcessor, tower: SiglipConfig) -> SquareForm:
    """Return how images become the tower's square. Raises CheckpointError."""
    size = read.square(tower.image)
    if size != tower.image:
        raise read.wrong("size", f"vision_config's image_size, {tower.image}")
    return SquareForm(size, None, read.resample(BICUBIC))
