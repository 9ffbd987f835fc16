"""SigLIP and SigLIP 2: two towers trained on pairs alone, so each pair has a score by itself.

Texts are as long as in training, whatever they say; an image's vector is what a learned query
attends to.

Source: Zhai et al. 2023 (arXiv:2303.15343), Tschannen et al. 2025 (arXiv:2502.14786); names and
config keys are those of Hugging Face's `SiglipModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.embedder import EmbedderFamily
from model_server.models.layers.layers import LayerNorm, Linear
from model_server.models.media.image_processor import ImageProcessor
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
    towers_of,
)
from model_server.models.media.pixels import shades_of
from model_server.models.media.siglip import SiglipConfig, SiglipTower
from model_server.models.media.tower_layer import dense, plain_ffw
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import BICUBIC, SquareForm
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

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[S, P, D] to f32[S, D]."""
        images, pieces, size = x.shape
        flat, head = x.reshape(-1, size), size // self.heads
        q = self.q(self.query[0]).reshape(self.heads, head)
        k, v = (part(flat).reshape(images, pieces, self.heads, head) for part in (self.k, self.v))
        scores = jnp.einsum("hq,sphq->shp", q, k) * head**-0.5
        mixed = jnp.einsum("shp,sphq->shq", jax.nn.softmax(scores, axis=-1), v)
        made = self.out(mixed.reshape(images, size))
        return made + self.ffw(self.norm(made))


class SiglipImages(nnx.Module):
    """A MediaEncoder whose images have one vector each."""

    def __init__(self, tower: SiglipConfig, form: WeightForm) -> None:
        self.tower = SiglipTower(tower, TOWER, form)
        self.head = AttentionPool(tower, f"{TOWER}.head", form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        return self.head(self.tower(pieces, places, lengths))[:, None]


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> ImageTextRecipe:
    keys = ConfigKeys(config, KEYS)
    texts, images = towers_of(keys, {"text_config": _DEFAULTS})
    if images.get("vision_use_head", True) is not True:
        raise CheckpointError(
            "vision_config has vision_use_head = false: without a head an image has no vector to "
            "compare"
        )
    tower = SiglipConfig.from_hf(images)
    read = ConfigKeys(texts, _TEXT_KEYS, _DEFAULTS)
    outputs = read.whole("projection_size", read.whole("hidden_size"))
    if outputs != tower.embed:
        raise CheckpointError(
            f"vectors of texts have {outputs} numbers and those of images {tower.embed}: they "
            "cannot be compared"
        )
    processor = image_processor(keys, "Siglip", ("size",))
    media = image_recipe(
        tower,
        outputs,
        _form(processor, tower),
        shades_of(processor.colours(_HALF, _HALF)),
        lambda form: SiglipImages(tower, form),
        first=0,
    )
    made = _texts(read, outputs)
    return recipe_of(made, media, values, padded=True, biased=True, independent=True)


def _form(read: ImageProcessor, tower: SiglipConfig) -> SquareForm:
    size = read.square(tower.image)
    if size != tower.image:
        raise read.wrong("size", f"vision_config's image_size, {tower.image}")
    return SquareForm(size, None, read.resample(BICUBIC))


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


FAMILY = EmbedderFamily("siglip", ("siglip",), "SigLIP, SigLIP 2", configure)
