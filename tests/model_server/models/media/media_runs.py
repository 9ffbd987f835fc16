"""Running encoders, and a decoder over a whole prompt with images, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.loading.images.prepared import PreparedImage
from model_server.models.media.media_recipe import MediaRecipe
from model_server.models.recipe import Recipe
from model_server.serving.chats.placeholders import places_of, triples_of
from tests.model_server.models.media.whole_media import WholeMedia, hidden_with_media


def recipe_of(recipe: Recipe) -> MediaRecipe:
    """The first encoder of a model: of images, if it has several."""
    return recipe.media[0]


def seen(
    encoders: Any, media: Sequence[MediaRecipe], images: Sequence[PreparedImage]
) -> np.ndarray:
    """f32[M, W]: the vectors of all images, of each encoder in one batch with an empty image at
    its end."""
    made = list[Any](images)
    for number, recipe in enumerate(media):
        mine = [at for at, image in enumerate(images) if image.encoder == number]
        if mine:
            found = _seen(encoders.each[number], recipe, [images[at] for at in mine])
            for at, rows in zip(mine, found, strict=True):
                made[at] = rows
    width = max(recipe.width for recipe in media)
    return np.concatenate([np.pad(each, ((0, 0), (0, width - each.shape[1]))) for each in made])


def _seen(encoder: Any, recipe: MediaRecipe, images: Sequence[PreparedImage]) -> list[np.ndarray]:
    most = recipe.pieces[-1]
    pieces = np.zeros((len(images) + 1, most, recipe.piece), np.float32)
    places = np.zeros((len(images) + 1, most, recipe.columns), np.int32)
    for row, image in enumerate(images):
        count = image.count
        pieces[row, :count] = np.frombuffer(image.pieces, "<f4").reshape(count, -1)
        places[row, :count] = np.frombuffer(image.places, "<i4").reshape(count, -1)
    lengths = jnp.asarray([*(image.count for image in images), 0], jnp.int32)
    inputs = (jnp.asarray(pieces), jnp.asarray(places), lengths)
    made = np.asarray(jax.jit(_encode)(encoder, *inputs))
    assert made.shape[1:] == (most // recipe.per_row, recipe.width)
    return [made[row, : image.rows] for row, image in enumerate(images)]


def _encode(encoder: Any, *inputs: jax.Array) -> jax.Array:
    return encoder(*inputs)


def places_in(
    media: Sequence[MediaRecipe], prompt: np.ndarray, images: Sequence[PreparedImage] | None = None
) -> np.ndarray:
    """bool[S]: the places of the vectors of images and sounds.

    images: those in the prompt, behind whose vectors such tokens are an answer's; None: all count.
    """
    here = np.isin(prompt, [token for recipe in media for token in recipe.tokens])
    return here if images is None else here & (here.cumsum() <= sum(each.rows for each in images))


def tokens_of(prompt: np.ndarray, here: np.ndarray) -> np.ndarray:
    """i32[S]: the prompt with rows of the buffer, in order, in the places of the images."""
    return np.where(here, -np.cumsum(here), prompt).astype(np.int32)


def ahead_of(
    media: Sequence[MediaRecipe], prompt: np.ndarray, places: np.ndarray
) -> np.ndarray | None:
    """i32[S]: how many later tokens of its image each token sees; None: none sees any."""
    if not any(recipe.bidirectional for recipe in media):
        return None
    tokens = [recipe.token for recipe in media if recipe.bidirectional]
    ahead, here = np.zeros(len(prompt), np.int32), np.isin(prompt, tokens) & places
    for at in reversed(range(len(prompt) - 1)):
        ahead[at] = ahead[at + 1] + 1 if here[at] and here[at + 1] else 0
    return ahead


def positions_in(
    media: Sequence[MediaRecipe], prompt: np.ndarray, images: Sequence[PreparedImage]
) -> np.ndarray | None:
    """i32[3, S]: frame, row and column of each token; None: tokens are counted.

    After an image or a video positions go on behind the larger of its sides, or as many as it says.
    """
    if not any(recipe.triples for recipe in media):
        return None
    if any(image.turns is not None for image in images):
        tokens = frozenset[int]().union(*(recipe.tokens for recipe in media))
        places = places_of(prompt.tolist(), tokens, images)
        return triples_of(len(prompt), places, images)[0].T
    at, start, following, waiting = list[tuple[int, ...]](), 0, 0, list(images)
    here = places_in(media, prompt, images)
    while len(at) < len(prompt):
        part = waiting.pop(0) if here[len(at)] else None
        if part is None or part.grid is None:
            count = 1 if part is None else part.rows
            at += [(following + n,) * 3 for n in range(count)]
            following += count
            continue
        if part.frame is None:
            lasts = max(part.grid) if part.lasts is None else part.lasts
            start, following = following, following + lasts
        rows = np.ndindex(part.grid[1:])
        at += [(start + (part.frame or 0), start + row, start + column) for row, column in rows]
    return np.asarray(at, np.int32).T


def logits_with_images(
    decoder: Any,
    media: Sequence[MediaRecipe],
    prompt: np.ndarray,
    rows: Any,
    images: Sequence[PreparedImage],
    asked: int = 0,
) -> Any:
    """f32[S, V] of the reference path: the whole prompt at once. asked: as of `WholePrompts`."""
    return WholePrompts(decoder, media, rows, images, len(prompt), asked).logits(prompt)


def _order(images: Sequence[PreparedImage]) -> np.ndarray:
    """The rows of all images in the order of their tokens: those of parts that take turns."""
    order = np.concatenate([np.full(image.rows, number) for number, image in enumerate(images)])
    for number, image in enumerate(images):
        if image.turns is not None:
            mine = (order >= number) & (order <= number + image.turns.max())
            order[mine] = number + image.turns
    return np.argsort(np.argsort(order, kind="stable"), kind="stable")


class WholePrompts:
    """A decoder over whole prompts with the same images in the same places, compiled once."""

    def __init__(
        self,
        decoder: Any,
        media: Sequence[MediaRecipe],
        rows: Any,
        images: Sequence[PreparedImage],
        most: int,
        asked: int = 0,
    ) -> None:
        """rows: the vectors of all images. most: tokens of the longest prompt. asked: the first
        ones, which see each other; 0: none do but those of images."""
        self._decoder, self._media, self._images, self._most = decoder, media, images, most
        self._asked = asked
        self._rows = jnp.asarray(rows)[jnp.asarray(_order(images), jnp.int32)]
        self._run = jax.jit(self._logits)

    def logits(self, prompt: np.ndarray) -> np.ndarray:
        """f32[S, V]: no token sees what is behind the prompt."""
        here = places_in(self._media, prompt, self._images)
        tokens, ahead = tokens_of(prompt, here), ahead_of(self._media, prompt, here)
        at = positions_in(self._media, prompt, self._images)
        ahead = np.zeros(len(prompt), np.int32) if ahead is None else ahead
        ahead = np.maximum(ahead, self._asked - 1 - np.arange(len(prompt), dtype=np.int32))
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
        recipes = self._media
        looks = self._asked or any(each.bidirectional for each in recipes)
        media = WholeMedia(
            buffer=rows,
            levels=max(recipe.levels for recipe in recipes),
            ahead=ahead[None] if looks else None,
            positions=at[:, None] if any(each.triples for each in recipes) else None,
        )
        lengths = jnp.asarray([self._most], jnp.int32)
        return decoder.logits(hidden_with_media(decoder, tokens[None], lengths, media)[0])
