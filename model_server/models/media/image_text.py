"""Models that put texts and images into one space: a tower for each, and the recipe of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR, VISION
from model_server.kernels.whole import attend_among
from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.embedder import EmbedRecipe, TokenHead, embedding
from model_server.models.layers.layers import Embedding, LayerNorm, Linear, live_of, run_layer
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.llava_vision_encoder import prepared
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.pixels import Shades
from model_server.models.media.siglip import LayerSizes, SiglipConfig, siglip_layer
from model_server.models.media.tower_layer import TowerAttention, dense
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import ImageForm
from sax.errors import CheckpointError, InvalidRequest

TEXT = "text_config"
TOWER, TEXTS = "vision_model", "text_model"  # begin the names of their tensors
OUTER = (TEXT, VISION, PREPROCESSOR)
REMEDY = "correct the file"
_TOGETHER = 4  # images of a batch: one of any size takes less than a text batch

# From hidden states f32[B, T, D] and tokens i32[B, T] to those that stand for the texts, f32[B, D]
Pool = Callable[[jax.Array, jax.Array], jax.Array]
Prepare = Callable[[np.ndarray], PreparedMedia]  # of pixels u8[h, w, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTextRecipe(EmbedRecipe):
    """A model whose vectors of texts and of images are compared, configured but not in memory.

    Its module maps tokens i32[B, T] and lengths i32[B] to vectors f32[B, D], its encoder of images
    pieces to one vector each.
    """

    pairs_images: ClassVar[bool] = True
    media: MediaRecipe
    padded: bool  # texts are filled up to the whole context, as in training
    # Compared pairs have logits exp(logit_scale) * cosine, plus logit_bias if it has one.
    biased: bool
    independent: bool  # logits of labels become scores by a sigmoid each; False: by a softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTower:
    """Sizes of the tower that reads texts."""

    layers: LayerSizes
    vocab: int
    positions: int
    outputs: int  # numbers of a vector
    causal: bool
    head: tuple[tuple[str], tuple[str] | None]  # names of the projection's kernel and bias
    pool: Pool


class CausalAttention(TowerAttention):
    """Each token sees itself and those before it."""

    def there(self, seen: jax.Array, pieces: int) -> None:
        """None: what pads a text comes behind it."""

    def mixed(self, q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
        """seen: [B, T]: any array of the inputs' shape."""
        if (live := live_of(self)) is not None:
            lengths = jnp.full(q.shape[:1], q.shape[1], jnp.int32)
            return attend_among(q, k, v, lengths, live, causal=True)
        before = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
        scores = jnp.einsum("bthq,bshq->bhts", q, k, preferred_element_type=jnp.float32)
        scores = jnp.where(before, scores * q.shape[-1] ** -0.5, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        return jnp.einsum("bhts,bshq->bthq", weights, v, preferred_element_type=jnp.float32)


class TextEncoder(nnx.Module):
    """Maps tokens i32[B, T] and lengths i32[B] to vectors f32[B, D]."""

    over_inputs = ("head",)

    def __init__(self, tower: TextTower, form: WeightForm) -> None:
        sizes, self.tower = tower.layers, tower
        table = (f"{TEXTS}.embeddings.token_embedding.weight",)
        self.embedding = Embedding(tower.vocab, sizes.embed, table, form=form)
        self.positions = weight(
            (tower.positions, sizes.embed),
            (None, "embed"),
            (f"{TEXTS}.embeddings.position_embedding.weight",),
            dtype=jnp.float32,
            spread=0.02,
        )
        attention = CausalAttention if tower.causal else TowerAttention
        names = (f"{TEXTS}.encoder.layers.{index}" for index in range(sizes.layers))
        self.layers = nnx.List([siglip_layer(sizes, name, form, attention) for name in names])
        norm = dense(f"{TEXTS}.final_layer_norm")
        self.final_norm = LayerNorm(sizes.embed, *norm, epsilon=sizes.epsilon)
        kernel, bias = tower.head
        axes = (None, "embed")
        self.head = Linear(tower.outputs, sizes.embed, axes, kernel, form=form, bias=bias)

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, segments: jax.Array | None = None
    ) -> jax.Array:
        """lengths: not read: what pads a text comes behind it, or belongs to it."""
        rows, columns = tokens.shape
        added = jnp.tile(self.positions[...][:columns], (rows, 1))
        x = self.embedding(tokens.reshape(-1)) + added
        whole = tokens if self.tower.causal else jnp.full((rows,), columns, jnp.int32)
        for layer in self.layers:
            x = run_layer(layer, x, whole)
        hidden = self.final_norm(x).reshape(rows, columns, -1)
        return self.head(self.tower.pool(hidden, tokens))


def towers_of(keys: ConfigKeys, defaults: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return `text_config` and `vision_config` of a config.json.

    Old files have what counts once more, as text_config_dict and vision_config_dict, in which what
    is missing has its default in place of the other's. Raises CheckpointError.
    """
    found: list[dict[str, Any]] = []
    for name in (TEXT, VISION):
        given, again = (keys.get(key, {}) for key in (name, f"{name}_dict"))
        if not isinstance(given, Mapping) or not isinstance(again, Mapping):
            raise CheckpointError(f"config.json has {name} = {given!r}; it must be an object")
        both = cast("dict[str, Any]", {**given, **again})
        if again:
            own = {key: value for key, value in again.items() if value is not None}
            both = {**both, **defaults.get(name, {}), **own}
        found.append({key: value for key, value in both.items() if value is not None})
    return tuple(found)


def image_processor(keys: ConfigKeys, name: str, read: tuple[str, ...]) -> ImageProcessor:
    """Return what preprocessor_config.json says. Raises CheckpointError, also without the file."""
    given = keys.get(PREPROCESSOR)
    if not isinstance(given, Mapping):
        raise CheckpointError(
            "the checkpoint has no preprocessor_config.json, which says how images are resized and "
            "scaled: put it beside config.json"
        )
    settings = cast("Mapping[str, Any]", given)
    return ImageProcessor(settings, name, read, off=("do_pad",), remedy=REMEDY)


def image_recipe(
    tower: SiglipConfig,
    outputs: int,
    form: ImageForm,
    build: Callable[[WeightForm], nnx.Module],
    prepare: Prepare,
    *,
    most: int | None = None,
    columns: int = 1,
    together: int = _TOGETHER,
) -> MediaRecipe:
    """Return the recipe of an encoder that makes one vector of an image.

    outputs: its numbers. most: pieces of an image; None: those of the tower's square. columns: of
    their places. together: images of a batch.
    """
    pieces = most or tower.side**2
    return MediaRecipe(
        kind="image",
        build=build,
        form=form,
        prepare=prepare,
        placeholder="",
        token=-1,
        piece=tower.piece,
        columns=columns,
        per_row=pieces,
        width=outputs,
        pieces=(pieces,),
        together=together,
    )


def squares(tower: SiglipConfig, shades: Shades, *, first: int) -> Prepare:
    """Return what cuts a square image; first: the place of its first piece in the table."""
    seen = tower.side * tower.patch  # pixels of a side; those that fill no piece are not

    def prepare(pixels: np.ndarray) -> PreparedMedia:
        made = prepared(shades, tower.patch, pixels[:seen, :seen])
        # One vector, of pieces that are counted from `first` instead of 1
        return made._replace(places=made.places - 1 + first, grid=None, rows=1, text="")

    return prepare


def recipe_of(
    texts: TextTower,
    media: MediaRecipe,
    values: Mapping[str, Any],
    **how: bool,  # padded, biased, independent
) -> ImageTextRecipe:
    """Return the recipe of both towers. Raises InvalidRequest."""

    def refused(form: WeightForm, labels: int) -> TokenHead:
        raise AssertionError("its architectures have no heads for labels")

    fields = embedding(values, texts.positions)
    # A text is filled up to all positions.
    if how["padded"] and fields["max_context"] not in (None, texts.positions):
        raise InvalidRequest(
            f"MAX_CONTEXT: this model fills every text up to {texts.positions} tokens: leave it "
            "out",
            param="overrides.MAX_CONTEXT",
        )
    return ImageTextRecipe(
        build=partial(TextEncoder, texts),
        build_classifier=refused,
        build_tagger=refused,
        embed=texts.outputs,
        vocab=texts.vocab,
        media=media,
        unused=(f"{TEXTS}.embeddings.position_ids", f"{TOWER}.embeddings.position_ids"),
        **how,
        **fields,
    )


def sizes_of(keys: ConfigKeys) -> LayerSizes:
    """Return the sizes of a tower of texts. Raises CheckpointError."""
    made = LayerSizes(**LayerSizes.read(keys))
    if made.embed % made.heads:
        raise CheckpointError(
            f"text_config has hidden_size {made.embed} for {made.heads} heads: they must divide it"
        )
    return made
