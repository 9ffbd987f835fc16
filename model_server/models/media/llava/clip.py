"""CLIP's tower: square images in patches, with learned positions and a vector of the whole.

Source: Radford et al. 2021 (arXiv:2103.00020); names and config keys are those of Hugging Face's
`CLIPVisionModel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.layers import LayerNorm, project, run_layer
from model_server.models.media.siglip import SiglipConfig, SiglipLayer
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "clip",
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
    # Of the vectors that it was trained to make, of training, and of the text model beside it.
    ignored("dropout", "initializer_factor", "projection_dim", "vocab_size"),
)
_DEFAULTS = {
    "hidden_act": "quick_gelu",
    "hidden_size": 768,
    "image_size": 224,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "patch_size": 32,
}


def clip_config(config: Mapping[str, Any]) -> SiglipConfig:
    """Parse `vision_config`; its layers are SigLIP's. Raises CheckpointError."""
    made = SiglipConfig.from_keys(ConfigKeys(config, KEYS, _DEFAULTS))
    if made.embed % made.heads or made.image % made.patch:
        raise CheckpointError(
            f"vision_config has hidden_size {made.embed} for {made.heads} heads and patches of "
            f"{made.patch} pixels for images of {made.image}: both must divide"
        )
    return made


class ClipTower(nnx.Module):
    """Maps patches of images to what each of some layers gives, without the whole's vector.

    Only the layers up to the last of these are there.
    """

    def __init__(
        self, config: SiglipConfig, depths: Sequence[int], prefix: str, form: WeightForm
    ) -> None:
        """depths: how many layers precede each result."""
        size, self.depths = config.embed, tuple(depths)
        self.kernel = weight(
            (size, 3, config.patch, config.patch),
            (None, None, None, None),
            (f"{prefix}.embeddings.patch_embedding.weight",),
            dtype=form.dtype,
            spread=0.02,
        )
        self.whole = _vectors((size,), f"{prefix}.embeddings.class_embedding")
        table = f"{prefix}.embeddings.position_embedding.weight"
        self.positions = _vectors((config.side**2 + 1, size), table)
        # So spelled in every checkpoint.
        names = (f"{prefix}.pre_layrnorm.weight",), (f"{prefix}.pre_layrnorm.bias",)
        self.before = LayerNorm(size, *names, epsilon=config.epsilon)
        layers = (f"{prefix}.encoder.layers.{index}" for index in range(max(depths)))
        self.layers = nnx.List([SiglipLayer(config, name, form) for name in layers])

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S, P, C] at numbers i32[S, P, 1] from 1 to f32[S, P, D * depths]."""
        images, count, numbers = pieces.shape
        flat, kernel = pieces.reshape(-1, numbers), self.kernel[...].reshape(-1, numbers)
        patches = project(flat, kernel).reshape(images, count, -1)
        whole = jnp.broadcast_to(self.whole[...] + self.positions[0], (images, 1, kernel.shape[0]))
        at = self.positions[...].at[places[..., 0]].get(mode="clip")
        x = jnp.concatenate([whole, patches + at], axis=1)
        x = self.before(x).reshape(images * (count + 1), -1)
        made = [x]
        for layer in self.layers:
            x = run_layer(layer, x, lengths + 1)
            made.append(x)
        found = jnp.concatenate([made[depth] for depth in self.depths], axis=-1)
        return found.reshape(images, count + 1, -1)[:, 1:]


def _vectors(shape: tuple[int, ...], name: str) -> nnx.Param:
    axes = (None,) * len(shape)
    return weight(shape, axes, (name,), dtype=jnp.float32, spread=0.02)
