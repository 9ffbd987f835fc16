"""Running an encoder, and a decoder over a whole prompt with images, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.recipe import Recipe
from tests.model_server.models.media.whole_media import WholeMedia, hidden_with_media


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
    made = np.asarray(jax.jit(_encode)(encoder, *inputs))
    assert made.shape[1:] == (most // recipe.per_row, recipe.width)
    return np.concatenate([made[row, : image.rows] for row, image in enumerate(images)])


def _encode(encoder: Any, *inputs: jax.Array) -> jax.Array:
    return encoder(*inputs)


def tokens_of(recipe: MediaRecipe, prompt: np.ndarray) -> np.ndarray:
    """i32[S]: the prompt with rows of the buffer, in order, in the places of the images."""
    here = np.isin(prompt, [*recipe.tokens])
    return np.where(here, -np.cumsum(here), prompt).astype(np.int32)


def ahead_of(recipe: MediaRecipe, prompt: np.ndarray) -> np.ndarray | None:
    """i32[S]: how many later tokens of its image each token sees; None: none sees any."""
    if not recipe.bidirectional:
        return None
    ahead, here = np.zeros(len(prompt), np.int32), prompt == recipe.token
    for at in reversed(range(len(prompt) - 1)):
        ahead[at] = ahead[at + 1] + 1 if here[at] and here[at + 1] else 0
    return ahead


def positions_in(
    recipe: MediaRecipe, prompt: np.ndarray, images: Sequence[PreparedMedia]
) -> np.ndarray | None:
    """i32[3, S]: frame, row and column of each token; None: tokens are counted.

    After an image or a video positions go on behind the larger of its sides.
    """
    if not recipe.triples:
        return None
    at, start, following, waiting = list[tuple[int, ...]](), 0, 0, list(images)
    while len(at) < len(prompt):
        if int(prompt[len(at)]) not in recipe.tokens:
            at.append((following,) * 3)
            following += 1
            continue
        part = waiting.pop(0)
        if part.frame is None:
            start, following = following, following + max(part.grid)
        rows = np.ndindex(part.grid[1:])
        at += [(start + (part.frame or 0), start + row, start + column) for row, column in rows]
    return np.asarray(at, np.int32).T


def logits_with_images(
    decoder: Any,
    recipe: MediaRecipe,
    prompt: np.ndarray,
    rows: Any,
    images: Sequence[PreparedMedia],
) -> Any:
    """f32[S, V] of the reference path: the whole prompt at once."""
    return WholePrompts(decoder, recipe, rows, images, len(prompt)).logits(prompt)


class WholePrompts:
    """A decoder over whole prompts with the same images in the same places, compiled once."""

    def __init__(
        self,
        decoder: Any,
        recipe: MediaRecipe,
        rows: Any,
        images: Sequence[PreparedMedia],
        most: int,
    ) -> None:
        """rows: the vectors of all images. most: tokens of the longest prompt."""
        self._decoder, self._recipe, self._images, self._most = decoder, recipe, images, most
        self._rows = jnp.asarray(rows)
        self._run = jax.jit(self._logits)

    def logits(self, prompt: np.ndarray) -> np.ndarray:
        """f32[S, V]: no token sees what is behind the prompt."""
        tokens, ahead = tokens_of(self._recipe, prompt), ahead_of(self._recipe, prompt)
        at = positions_in(self._recipe, prompt, self._images)
        ahead = np.zeros(len(prompt), np.int32) if ahead is None else ahead
        at = np.zeros((3, len(prompt)), np.int32) if at is None else at
        given = (self._padded(each) for each in (tokens, ahead, at))
        found = self._run(self._decoder, next(given), self._rows, *given)
        return np.asarray(found)[: len(prompt)]

    def _padded(self, numbers: np.ndarray) -> jax.Array:
        rest = self._most - numbers.shape[-1]
        return jnp.asarray(np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, rest)]))

    def _logits(
        self, decoder: Any, tokens: jax.Array, rows: jax.Array, ahead: jax.Array, at: jax.Array
    ) -> jax.Array:
        recipe = self._recipe
        media = WholeMedia(
            buffer=rows,
            levels=recipe.levels,
            ahead=ahead[None] if recipe.bidirectional else None,
            positions=at[:, None] if recipe.triples else None,
        )
        lengths = jnp.asarray([self._most], jnp.int32)
        return decoder.logits(hidden_with_media(decoder, tokens[None], lengths, media)[0])
