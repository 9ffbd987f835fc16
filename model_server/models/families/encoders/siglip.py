"""SigLIP and SigLIP 2: two towers trained on pairs alone, so each pair has a score by itself.

Texts are as long as in training, whatever they say; an image's vector is what a learned query
attends to. Images of NaFlex, a kind of SigLIP 2, keep their proportions.

Source: Zhai et al. 2023 (arXiv:2303.15343), Tschannen et al. 2025 (arXiv:2502.14786); names and
config keys are those of Hugging Face's `SiglipModel` and `Siglip2Model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.embedder import EmbedderFamily
from model_server.models.layers.layers import LayerNorm, Linear
from model_server.models.media.image_text import (
    OUTER,
    TEXTS,
    TOWER,
    ImageTextRecipe,
    TextTower,
    image_processor,
    image_recipe,
    recipe_of,
    sizes_of,
    squares,
    towers_of,
)
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.pixels import patches_of, places_of, shades_of
from model_server.models.media.siglip import NaflexTower, SiglipConfig, SiglipTower, square_form
from model_server.models.media.tower_layer import dense, plain_ffw
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import BILINEAR, PatchesForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "siglip",
    (*OUTER, "text_config_dict", "vision_config_dict"),
    ignored("initializer_factor"),
)
_TEXT_KEYS = KnownKeys(
    "siglip",
    (
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "projection_size",
        "vocab_size",
    ),
    {},
)
_DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 32000,
}
_HALF = (0.5, 0.5, 0.5)
_NAFLEX = "siglip2"  # SigLIP 2 of one resolution is stored as a SigLIP


class AttentionPool(nnx.Module):
    """One learned query over the pieces of an image, then a feed-forward."""

    def __init__(self, tower: SiglipConfig, prefix: str, form: WeightForm) -> None:
        size, self.heads = tower.embed, tower.heads
        name = f"{prefix}.attention"
        self.query = weight(
            (1, 1, size), (None, None, None), (f"{prefix}.probe",), dtype=jnp.float32, spread=0.02
        )
        joined, biases = (Tensor(f"{name}.in_proj_{part}") for part in ("weight", "bias"))
        self.q, self.k, self.v = (
            Linear(
                size,
                size,
                (None, "embed"),
                cut(joined, at * size, (at + 1) * size, of=3 * size),
                form=form,
                bias=cut(biases, at * size, (at + 1) * size, of=3 * size),
            )
            for at in range(3)
        )
        kernel, bias = dense(f"{name}.out_proj")
        self.out = Linear(size, size, (None, "embed"), kernel, form=form, bias=bias)
        self.norm = LayerNorm(size, *dense(f"{prefix}.layernorm"), epsilon=tower.epsilon)
        up, down = f"{prefix}.mlp.fc1", f"{prefix}.mlp.fc2"
        self.ffw = plain_ffw(size, tower.ffw, up, down, tower.activation, form)

    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S, P, D] to f32[S, D]; lengths: i32[S], pieces of each image."""
        images, pieces, size = x.shape
        flat, head = x.reshape(-1, size), size // self.heads
        q = self.q(self.query[0]).reshape(self.heads, head)
        k, v = (part(flat).reshape(images, pieces, self.heads, head) for part in (self.k, self.v))
        scores = jnp.einsum("hq,sphq->shp", q, k) * head**-0.5
        there = jnp.arange(pieces)[None] < lengths[:, None]
        scores = jnp.where(there[:, None], scores, -1e30)
        mixed = jnp.einsum("shp,sphq->shq", jax.nn.softmax(scores, axis=-1), v)
        made = self.out(mixed.reshape(images, size))
        return made + self.ffw(self.norm(made))


class SiglipImages(nnx.Module):
    """A MediaEncoder whose images have one vector each."""

    def __init__(self, kind: type[SiglipTower], tower: SiglipConfig, form: WeightForm) -> None:
        self.tower = kind(tower, TOWER, form)
        self.head = AttentionPool(tower, f"{TOWER}.head", form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        return self.head(self.tower(pieces, places, lengths), lengths)[:, None]


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> ImageTextRecipe:
    keys = ConfigKeys(config, KEYS)
    texts, images = towers_of(keys, {"text_config": _DEFAULTS})
    if images.get("vision_use_head", True) is not True:
        raise CheckpointError(
            "vision_config has vision_use_head = false: without a head an image has no vector to "
            "compare"
        )
    naflex = keys.all.get("model_type") == _NAFLEX
    tower = SiglipConfig.of_naflex(images) if naflex else SiglipConfig.from_hf(images)
    read = ConfigKeys(texts, _TEXT_KEYS, _DEFAULTS)
    outputs = read.whole("projection_size", read.whole("hidden_size"))
    if outputs != tower.embed:
        raise CheckpointError(
            f"vectors of texts have {outputs} numbers and those of images {tower.embed}: they "
            "cannot be compared"
        )
    media = (_of_any_shape if naflex else _of_squares)(keys, tower)
    made = _texts(read, outputs)
    return recipe_of(made, media, values, padded=True, biased=True, independent=True)


def _of_squares(keys: ConfigKeys, tower: SiglipConfig) -> MediaRecipe:
    """Return the encoder of images that become squares. Raises CheckpointError."""
    read = image_processor(keys, "Siglip", ("size",))
    return image_recipe(
        tower,
        tower.embed,
        square_form(read, tower),
        lambda form: SiglipImages(SiglipTower, tower, form),
        squares(tower, shades_of(read.colours(_HALF, _HALF)), first=0),
    )


def _of_any_shape(keys: ConfigKeys, tower: SiglipConfig) -> MediaRecipe:
    """Return the encoder of images that keep their proportions. Raises CheckpointError.

    Each is a batch by itself, of as many pieces as the largest: the bits of its vector do not
    depend on what else is asked for.
    """
    read = image_processor(keys, "Siglip2", ("max_num_patches", "patch_size"))
    read.equal({"patch_size": tower.patch}, "vision_config's patch_size")
    most, shades = read.whole("max_num_patches", 256), shades_of(read.colours(_HALF, _HALF))

    def prepare(pixels: np.ndarray) -> PreparedMedia:
        high, wide = (side // tower.patch for side in pixels.shape[:2])
        at = places_of(high, wide, 1)
        places = np.concatenate([at, np.full_like(at, (high, wide))], axis=1)
        pieces = patches_of(pixels, shades, tower.patch, 1, colours_last=True)
        return PreparedMedia(pieces, places, None, 1, "")

    return image_recipe(
        tower,
        tower.embed,
        PatchesForm(tower.patch, most, read.resample(BILINEAR)),
        lambda form: SiglipImages(NaflexTower, tower, form),
        prepare,
        most=most,
        columns=4,
        together=1,
    )


def _texts(keys: ConfigKeys, outputs: int) -> TextTower:
    kernel, bias = dense(f"{TEXTS}.head")
    return TextTower(
        layers=sizes_of(keys),
        vocab=keys.whole("vocab_size"),
        positions=keys.whole("max_position_embeddings"),
        outputs=outputs,
        causal=False,
        head=(kernel, bias),
        pool=lambda hidden, tokens: hidden[:, -1],
    )


FAMILY = EmbedderFamily("siglip", ("siglip", _NAFLEX), "SigLIP, SigLIP 2", configure)
