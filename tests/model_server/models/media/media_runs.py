"""Running an encoder, and a decoder over a whole prompt with images, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.models.layers.whole_decoder import WholeMedia, hidden_with_media
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.recipe import Recipe
from tests.model_server.models.quick import quick


def recipe_of(recipe: Recipe) -> MediaRecipe:
    assert recipe.media is not None
    return recipe.media


def seen(encoder: Any, recipe: MediaRecipe, images: Sequence[PreparedMedia]) -> np.ndarray:
    """f32[M, W]: the vectors of all images, one batch with an empty image at its end."""
    most = recipe.pieces[-1]
    pieces = np.zeros((len(images) + 1, most, recipe.piece), np.float32)
    places = np.zeros((len(images) + 1, most, recipe.columns), np.int32)
    for row, image in enumerate(images):
        pieces[row, : len(image.pieces)] = image.pieces
        places[row, : len(image.places)] = image.places
    lengths = jnp.asarray([*(len(image.pieces) for image in images), 0], jnp.int32)
    inputs = (jnp.asarray(pieces), jnp.asarray(places), lengths)
    made = np.asarray(quick(_encode, encoder, *inputs)(encoder, *inputs))
    assert made.shape[1:] == (most // recipe.per_row, recipe.width)
    return np.concatenate([made[row, : image.rows] for row, image in enumerate(images)])


def _encode(encoder: Any, *inputs: jax.Array) -> jax.Array:
    return encoder(*inputs)


def tokens_of(recipe: MediaRecipe, prompt: np.ndarray) -> np.ndarray:
    """i32[S]: the prompt with rows of the buffer, in order, in the places of the images."""
    here = prompt == recipe.token
    return np.where(here, -np.cumsum(here), prompt).astype(np.int32)


def ahead_of(recipe: MediaRecipe, prompt: np.ndarray) -> np.ndarray | None:
    """i32[S]: how many later tokens of its image each token sees; None: none sees any."""
    if not recipe.sees_itself:
        return None
    ahead, here = np.zeros(len(prompt), np.int32), prompt == recipe.token
    for at in reversed(range(len(prompt) - 1)):
        ahead[at] = ahead[at + 1] + 1 if here[at] and here[at + 1] else 0
    return ahead


def logits_with_images(decoder: Any, recipe: MediaRecipe, prompt: np.ndarray, rows: Any) -> Any:
    """f32[S, V] of the reference path: the whole prompt at once."""
    tokens, ahead = tokens_of(recipe, prompt), ahead_of(recipe, prompt)
    ahead = None if ahead is None else jnp.asarray(ahead[None])

    def run(decoder: Any, tokens: jax.Array, rows: jax.Array) -> jax.Array:
        media = WholeMedia(buffer=rows, levels=recipe.levels, ahead=ahead)
        lengths = jnp.asarray([len(prompt)], jnp.int32)
        return decoder.logits(hidden_with_media(decoder, tokens[None], lengths, media)[0])

    inputs = (jnp.asarray(tokens), jnp.asarray(rows))
    return np.asarray(quick(run, decoder, *inputs)(decoder, *inputs))
