"""Reads the weights of the encoder beside a language model, from the same checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.media_part import media_part_of
from model_server.loading.random_weights import random_weights
from model_server.loading.weights import mismatches, read_weights
from model_server.models.media.media_recipe import MediaRecipe
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Blueprint
from sax.errors import CheckpointError
from sax.types import Progress

Report = Callable[[Progress], None]


def encoder_weights(
    encoder: Blueprint | None,
    layout: Layout,
    checkpoint: Checkpoint | None,
    seed: int,
    report: Report,
    media: MediaRecipe | None,
) -> Sequence[jax.Array]:
    """Return the weights of an encoder, or none. Raises CheckpointError naming a tensor.

    encoder: None: nothing of it lies here. checkpoint: the language model's; None: the weights are
    drawn with the seed. media: of the model.
    """
    if encoder is None:
        return ()
    assert media is not None, "it has an encoder"
    declared = encoder.declarations
    if checkpoint is None:
        return random_weights(declared, seed, report, layout)
    if found := next(iter(encoder_problems(encoder, checkpoint, media)), None):
        raise CheckpointError(found)
    part = media_part_of(checkpoint)
    assert part is not None, "it has no problems"
    return read_weights(declared, without_prefixes(part, media.unused), report, layout)


def encoder_problems(
    encoder: Blueprint, checkpoint: Checkpoint, media: MediaRecipe, shown: int = 3
) -> list[str]:
    """Return what keeps an encoder from being read; shown: as of `mismatches`."""
    part = media_part_of(checkpoint)
    remedy = f"publish it with {media.override}=false, for text only"
    if part is None:
        return [f"config.json has a {media.encoder}, and no tensor is of one: {remedy}"]
    found = mismatches(encoder.declarations, without_prefixes(part, media.unused), shown)
    return [f"in the {media.encoder}, {text}; or {remedy}" for text in found]
