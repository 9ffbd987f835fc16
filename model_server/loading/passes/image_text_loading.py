"""Loads a model that puts texts and images into one space: a program for each batch of either."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.files import read_json
from model_server.loading.batch_plan import BatchPlan
from model_server.loading.images.image_reader import image_reader
from model_server.loading.kinds import AskedModel
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.loaded_model import Report
from model_server.loading.media.encoder_plan import limits_of
from model_server.loading.passes.embed_loading import layout_of_recipe
from model_server.loading.passes.image_passes import ImageEncoders, PairedBatches, PairedPrograms
from model_server.loading.passes.loaded_passes import WAIT_S, ImageReading, LoadedEmbedder, Matching
from model_server.loading.weights import mismatches, read_weights
from model_server.models.layers.embedder import unit
from model_server.models.media.image_text import ImageTextRecipe
from model_server.models.media.media_recipe import Encoders, encoder_form
from model_server.models.tasks import EMBED, sizes_of
from model_server.models.weights.weight import blueprint, leaf_shapes
from model_server.text.sentence_tokenizer import SentenceTokenizer
from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabulary_fit import check_fit
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts

_SCALE, _BIAS = "logit_scale", "logit_bias"
_METHODS = ("lm.embed", "lm.rerank", "lm.classify")


def plan(asked: AskedModel, context: LoadContext, report: Report) -> BatchPlan[LoadedEmbedder]:
    """Compile the programs of both towers. Raises CheckpointError, InvalidRequest, LoadFailed."""
    recipe, checkpoint = asked.recipe, asked.checkpoint
    assert isinstance(recipe, ImageTextRecipe), "it is of this kind"
    assert checkpoint is not None, "every embedder needs a checkpoint"
    _check_tasks(recipe, checkpoint)
    tokenizer = checkpoint.tokenizer()
    check_fit(tokenizer, recipe.vocab, asked.spec.checkpoint)
    towers = _Towers(recipe, checkpoint)
    normalise = recipe.tasks.normalise is not False
    max_context = min(recipe.max_context or recipe.own_context, recipe.own_context)
    texts = PairedPrograms(
        towers.texts,
        _encode_as(normalise=normalise),
        context=max_context,
        batch=recipe.batch,
        leaves=leaf_shapes(towers.texts, towers.layout),
        filler=_filler(checkpoint.folder, tokenizer) if recipe.padded else None,
    )
    encoders = ImageEncoders(towers.images, limits_of([recipe.media], recipe.batch), towers.layout)
    texts.compile(report)
    encoders.compile(report)

    def runner(report: Report) -> PairedBatches:
        leaves, weights = towers.read(report)
        encoders.open(weights)
        return PairedBatches(texts, leaves, encoders, normalise=normalise)

    reader = image_reader([recipe.media])
    assert reader is not None, "it has a recipe"
    own = recipe.tasks.matryoshka
    return BatchPlan(
        context=context,
        spec=asked.spec,
        layout=towers.layout,
        parts=MemoryParts(weights=towers.bytes, workspace=texts.workspace + encoders.workspace),
        runner=runner,
        loaded=partial(
            LoadedEmbedder,
            tokenizer=_sentences(checkpoint.folder, tokenizer, padded=recipe.padded),
            vocab=recipe.vocab,
            max_context=max_context,
            dimensions=recipe.embed,
            sizes=sizes_of(checkpoint.config) if own is None else own,
            normalised=normalise,
            batching={ONLY: Batching(recipe.batch, WAIT_S, context.config.queue)},
            methods=_METHODS,
            image_reading=ImageReading(images=reader, paired=True),
            matching=_matching(recipe, checkpoint),
        ),
    )


def _check_tasks(recipe: ImageTextRecipe, checkpoint: Checkpoint) -> None:
    """Raise InvalidRequest for an override that could change nothing."""
    if recipe.tasks.of(checkpoint.config, embeds=True, generates=False) != {EMBED}:
        raise InvalidRequest(
            "a model of texts and images embeds and matches, and no more: leave TASKS out",
            param="overrides.TASKS",
        )
    if recipe.tasks.pooling is not None:
        raise InvalidRequest(
            "POOLING changes nothing: each tower has a pooling of its own; leave it out",
            param="overrides.POOLING",
        )


class _Towers:
    """Both towers, known to match the checkpoint, without weights."""

    def __init__(self, recipe: ImageTextRecipe, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError, MemoryPlanError."""
        self.layout = layout_of_recipe(recipe)
        self.texts = recipe.blueprint(layout=self.layout)
        form = encoder_form(recipe.dtype, self.layout)
        self.images = blueprint(lambda: Encoders([recipe.media], form))
        self._needed = without_prefixes(checkpoint, (*recipe.unused, _SCALE, _BIAS))
        declared = [*self.texts.declarations, *self.images.declarations]
        if found := next(mismatches(declared, self._needed), None):
            raise CheckpointError(found)

    @property
    def bytes(self) -> int:
        """Bytes of the weights of both, on each device."""
        return sum(each.bytes_on(self.layout) for each in (self.texts, self.images))

    def read(self, report: Report) -> tuple[list[jax.Array], list[jax.Array]]:
        """Return the weights of the tower of texts, and of that of images."""

        texts = self.texts.declarations
        declared = [*texts, *self.images.declarations]
        leaves = read_weights(declared, self._needed, report, self.layout)
        count = sum(len(weight.leaves) for weight in texts)
        return [*leaves[:count]], [*leaves[count:]]


def _encode_as(*, normalise: bool) -> Any:
    def vectors_of(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        vectors = model(tokens, lengths)
        return unit(vectors) if normalise else vectors

    return vectors_of


def _matching(recipe: ImageTextRecipe, checkpoint: Checkpoint) -> Matching:
    """Read how cosines become logits. Raises CheckpointError."""

    def number(name: str) -> float:
        if math.prod(checkpoint.shape(name)) != 1:
            raise CheckpointError(f"{name} is {list(checkpoint.shape(name))}; it is one number")
        return float(np.asarray(checkpoint.read(name), np.float32).item())

    bias = number(_BIAS) if recipe.biased else 0.0
    return Matching(scale=math.exp(number(_SCALE)), bias=bias, independent=recipe.independent)


def _sentences(folder: Path | None, tokenizer: HfTokenizer, *, padded: bool) -> SentenceTokenizer:
    """Return the tokenizer of texts, in the case of letters in which they were trained.

    SigLIP was trained on lower case, which its tokenizer.json does not make; the first one also
    without punctuation, which SigLIP 2, with the tokenizer of Gemma, kept.
    """
    first = _setting(folder, "tokenizer_class") == "SiglipTokenizer"
    return SentenceTokenizer(tokenizer, "", {}, lower_case=padded, words_alone=first)


def _filler(folder: Path | None, tokenizer: HfTokenizer) -> int:
    """Return the token that fills texts up. Raises CheckpointError."""
    token = _setting(folder, "pad_token")
    text = token.get("content") if isinstance(token, dict) else token
    found = tokenizer.token_id(text) if isinstance(text, str) else None
    if found is None:
        raise CheckpointError(
            f"tokenizer_config.json has pad_token = {token!r}, with which texts are filled up; it "
            "must be a token of the vocabulary"
        )
    return found


def _setting(folder: Path | None, key: str) -> Any:
    path = None if folder is None else folder / "tokenizer_config.json"
    return None if path is None else read_json(path, missing={}).get(key)
