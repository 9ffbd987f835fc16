"""Reads the weights of the encoder beside a language model, from the same checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.media_part import AUDIO, VISION, media_part_of
from model_server.loading.random_weights import random_weights
from model_server.loading.weights import mismatches, read_weights
from model_server.models.media.media_recipe import OVERRIDES, MediaRecipe
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
    media: MediaRecipe | None = None,
) -> Sequence[jax.Array]:
    """Return the weights of an encoder, or none. Raises CheckpointError naming a tensor.

    encoder: None: nothing of it lies here. checkpoint: the language model's; None: the weights are
    drawn with the seed. media: the recipe of the encoder; None: it needs all of its tensors.
    """
    if encoder is None:
        return ()
    declared = encoder.declarations
    if checkpoint is None:
        return random_weights(declared, seed, report, layout)
    if found := next(iter(encoder_problems(encoder, checkpoint, media)), None):
        raise CheckpointError(found)
    part = media_part_of(checkpoint)
    assert part is not None, "it has no problems"
    return read_weights(declared, _needed(part, media), report, layout)


def encoder_problems(
    encoder: Blueprint, checkpoint: Checkpoint, media: MediaRecipe | None, shown: int = 3
) -> list[str]:
    """Return what keeps an encoder from being read; shown: as of `mismatches`."""
    part, kind = media_part_of(checkpoint), media.kind if media else "image"
    of, key = ("audio encoder", AUDIO) if kind == "audio" else ("vision encoder", VISION)
    remedy = f"publish it with {OVERRIDES[kind]}=false, for text only"
    if part is None:
        return [f"config.json has {key}, but no tensor is of the {of}: {remedy}"]
    found = mismatches(encoder.declarations, _needed(part, media), shown)
    return [f"in the {of}, {text}; or {remedy}" for text in found]


def _needed(part: Checkpoint, media: MediaRecipe | None) -> Checkpoint:
    return without_prefixes(part, media.unused if media else ())
