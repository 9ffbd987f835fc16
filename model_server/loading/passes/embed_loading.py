"""Loads a model that makes no tokens: settings, compiled buckets, memory plan, then weights.

It embeds texts, or gives them scores for labels. Compiling needs no weights and shows how much
memory a batch takes, so nothing is placed before the plan is known to fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.huggingface.sentence_transformers import (
    SentenceSettings,
    read_sentence_settings,
)
from model_server.config import AUTO, ModelServerConfig
from model_server.loading.loaded import LoadedEmbedder
from model_server.loading.memory_plan import FreeMemory
from model_server.loading.passes.classes import ACTIVATIONS, activation_of
from model_server.loading.passes.embed_runner import EmbedModelRunner, EmbedPrograms, Encode
from model_server.loading.passes.sentence_tokenizer import SentenceTokenizer
from model_server.loading.weights import mismatches, read_weights
from model_server.models.labels import labels_of
from model_server.models.layers.embedder import EmbedRecipe, pooled
from model_server.models.recipe import quantization_of
from model_server.models.tasks import CLASSIFY, Tasks, sizes_of
from model_server.models.weights.weight import Blueprint
from model_server.text.vocabulary_fit import check_fit
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts
from sax.types import Progress

Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A model that is known to match its checkpoint, before it is compiled."""

    recipe: EmbedRecipe
    settings: SentenceSettings
    tokenizer: SentenceTokenizer
    labels: tuple[str, ...]  # empty: it embeds
    module: Blueprint
    needed: Checkpoint
    encode: Encode


def load_embedder(
    recipe: EmbedRecipe,
    checkpoint: Checkpoint,
    path: str,
    config: ModelServerConfig,
    free: FreeMemory,
    report: Report,
) -> LoadedEmbedder:
    """Load a model that embeds or classifies.

    Raises CheckpointError, InvalidRequest, MemoryPlanError.
    """
    plan = _planned(recipe, checkpoint, path)
    context = context_of(recipe, plan.settings, config)
    programs = EmbedPrograms(plan.module, plan.encode, context=context, batch=recipe.batch)
    programs.compile(report)
    memory = free.reserve(weights=plan.module.bytes, workspace=programs.workspace)
    leaves = read_weights(plan.module.declarations, plan.needed, report)
    runner = EmbedModelRunner(programs, leaves, recipe.batch)
    runner.warm(report)
    return LoadedEmbedder(
        runner=runner,
        tokenizer=plan.tokenizer,
        vocab=recipe.vocab,
        max_context=context,
        dimensions=recipe.embed,
        sizes=sizes_of(checkpoint.config) if (own := recipe.tasks.matryoshka) is None else own,
        normalised=plan.settings.normalise,
        labels=plan.labels,
        queue=config.queue,
        memory=memory,
        parts=MemoryParts(weights=plan.module.bytes, workspace=programs.workspace),
        methods=methods_of(plan.labels),
    )


def methods_of(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the methods of a model with these labels; none: it embeds."""
    if not labels:
        return ("lm.embed", "lm.rerank")
    return ("lm.classify", "lm.rerank") if len(labels) == 1 else ("lm.classify",)


def _planned(recipe: EmbedRecipe, checkpoint: Checkpoint, path: str) -> _Plan:
    settings = settings_of(recipe, checkpoint)
    tasks = recipe.tasks.of(
        checkpoint.config, embeds=settings.embeds, generates=not recipe.embeds_only
    )
    labels = labels_of(checkpoint.config) if CLASSIFY in tasks else ()
    tokenizer = checkpoint.tokenizer()
    check_fit(tokenizer, recipe.vocab, path)
    module = recipe.blueprint(quantization_of(recipe.quantize, checkpoint.packing), len(labels))
    needed = without_prefixes(checkpoint, recipe.unused_in_classes if labels else recipe.unused)
    if found := next(mismatches(module.declarations, needed), None):
        raise CheckpointError(found)
    own = SentenceTokenizer(tokenizer, settings)
    if labels:
        how = recipe.tasks.activation or activation_of(checkpoint.config, len(labels))
        encode = classifying(how, tokenizer.separator)
    else:
        encode = embedding_as(settings, recipe.pooling)
    return _Plan(recipe, settings, own, labels, module, needed, encode)


def settings_of(recipe: EmbedRecipe, checkpoint: Checkpoint) -> SentenceSettings:
    """Return the settings of the checkpoint, with those of the publish. Raises CheckpointError."""
    return with_tasks(read_sentence_settings(checkpoint.folder), checkpoint, recipe.tasks)


def with_tasks(
    settings: SentenceSettings, checkpoint: Checkpoint | None, tasks: Tasks
) -> SentenceSettings:
    """Return the settings with those of a GGUF file, which are in its config, and of a publish."""
    if checkpoint is not None and (pooling := checkpoint.config.get("pooling")):
        settings = replace(settings, pooling=pooling)
    if tasks.pooling is not None:
        settings = replace(settings, pooling=tasks.pooling)
    if tasks.normalise is not None:
        settings = replace(settings, normalise=tasks.normalise)
    return settings


def _called(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    return model(tokens, lengths)


def embedding_as(settings: SentenceSettings, pooling: str, hidden: Encode = _called) -> Encode:
    """Return the function from tokens to vectors; `pooling`: if the settings have none.

    hidden: from a module, tokens and lengths to hidden states f32[B, T, D].
    """
    how = settings.pooling or pooling

    def encode(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return pooled(
            hidden(model, tokens, lengths), lengths, pooling=how, normalise=settings.normalise
        )

    return encode


def classifying(activation: str, separator: int | None) -> Encode:
    """Return the function from tokens to scores f32[B, labels].

    The text after the first `separator` is the second of a pair.
    """

    def encode(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        segments = None
        if separator is not None:
            ends = jnp.cumsum(tokens == separator, axis=1) - (tokens == separator)
            segments = jnp.minimum(ends, 1)
        return ACTIVATIONS[activation](model(tokens, lengths, segments))

    return encode


def context_of(recipe: EmbedRecipe, settings: SentenceSettings, config: ModelServerConfig) -> int:
    """Return the tokens per input: the recipe's, else the checkpoint's; capped by positions."""
    wanted = recipe.max_context or settings.max_length or recipe.own_context
    most = config.max_context or wanted
    context = min(wanted, recipe.own_context, wanted if most == AUTO else most)
    if context < 3:  # a start, one token, an end
        raise InvalidRequest(
            f"a context of {context} tokens holds no text: raise MAX_CONTEXT or --max_context",
            param="overrides.MAX_CONTEXT",
        )
    return context
