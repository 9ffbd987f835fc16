"""Reads the weights of the encoders beside a language model, from the same checkpoint, and checks
that its tokenizer knows the tokens that stand for an image or a sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.media_part import media_part_of
from model_server.loading.random_weights import random_weights
from model_server.loading.weights import mismatches, read_weights
from model_server.models.media.media_recipe import CONFIGS, MediaRecipe, text_only
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Blueprint
from model_server.text.tokenizer import Tokenizer
from sax.errors import CheckpointError
from sax.types import Progress

Report = Callable[[Progress], None]


def encoder_weights(
    encoder: Blueprint | None,
    layout: Layout,
    checkpoint: Checkpoint | None,
    seed: int,
    report: Report,
    media: Sequence[MediaRecipe],
) -> Sequence[jax.Array]:
    """Return the weights of `Encoders`, or none. Raises CheckpointError naming a tensor.

    encoder: None: nothing of them lies here. checkpoint: the language model's; None: the weights
    are drawn with the seed. media: of the model.
    """
    if encoder is None:
        return ()
    declared = encoder.declarations
    if checkpoint is None:
        return random_weights(declared, seed, report, layout)
    if found := next(iter(encoder_problems(encoder, checkpoint, media)), None):
        raise CheckpointError(found)
    part = _part(checkpoint, media)
    assert part is not None, "it has no problems"
    return read_weights(declared, part, report, layout)


def encoder_problems(
    encoder: Blueprint, checkpoint: Checkpoint, media: Sequence[MediaRecipe], shown: int = 3
) -> list[str]:
    """Return what keeps `Encoders` from being read; shown: as of `mismatches`."""
    part, named = _part(checkpoint, media), " and ".join(each.encoder for each in media)
    remedy = f"publish it with {text_only(media)}, for text only"
    if part is None:
        return [f"config.json has a {named}, and no tensor is of one: {remedy}"]
    found = mismatches(encoder.declarations, part, shown)
    return [f"in the {named}, {text}; or {remedy}" for text in found]


def _part(checkpoint: Checkpoint, media: Sequence[MediaRecipe]) -> Checkpoint | None:
    """Return the tensors of these encoders; None: there are none."""
    part = media_part_of(checkpoint, {CONFIGS[each.kind] for each in media})
    unused = tuple(prefix for each in media for prefix in each.unused)
    return None if part is None else without_prefixes(part, unused)


_SIDE = 64  # pixels of the image that is tried
_SAMPLES = 8_000  # of the sound, half a second


def check_image_tokens(media: Sequence[MediaRecipe], tokenizer: Tokenizer) -> None:
    """Raise CheckpointError if a prompt with an image or a sound would not have its tokens."""
    for each in media:
        _check_tokens(each, tokenizer)


def _check_tokens(media: MediaRecipe, tokenizer: Tokenizer) -> None:
    tried = media.prepare(_tried(media))
    one = "a sound" if media.kind == "audio" else "an image"
    found = sum(each in media.tokens for each in tokenizer.encode_chat(tried.text))
    if found != tried.rows:
        raise CheckpointError(
            f"the tokenizer makes {found} tokens {media.token} of the text of {one}, which has "
            f"{tried.rows}: its files are not those of this model with {media.many}; correct them, "
            f"or publish it with {media.override}=false, without {media.many}"
        )


def _tried(media: MediaRecipe) -> np.ndarray:
    if media.form is None:
        return np.zeros(_SAMPLES, np.float32)
    width, height = media.form.fit(_SIDE, _SIDE).size
    return np.zeros((height, width, 3), np.uint8)
