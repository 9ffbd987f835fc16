"""Loads an embedding model: settings, compiled buckets, memory plan, then weights.

Compiling needs no weights and shows how much memory a batch takes, so nothing is placed before the
plan is known to fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.huggingface.sentence_transformers import (
    SentenceSettings,
    read_sentence_settings,
)
from model_server.config import AUTO, ModelServerConfig
from model_server.loading.embed_runner import EmbedModelRunner, EmbedPrograms
from model_server.loading.loaded import LoadedEmbedder
from model_server.loading.memory_plan import FreeMemory
from model_server.loading.weights import mismatches, read_weights
from model_server.models.layers.embedder import EmbedRecipe, pooled
from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabulary_fit import check_fit
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts
from sax.types import Progress


class SentenceTokenizer:
    """Encodes texts as the embedder expects: prefix, letter case, start and end tokens."""

    def __init__(self, tokenizer: HfTokenizer, settings: SentenceSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings

    @property
    def longest_token(self) -> int:
        return self._tokenizer.longest_token

    def encode(self, text: str) -> list[int]:
        whole = self._settings.prefix + text
        return self._tokenizer.encode_framed(whole.lower() if self._settings.lower_case else whole)


def load_embedder(
    recipe: EmbedRecipe,
    checkpoint: Checkpoint,
    path: str,
    config: ModelServerConfig,
    free: FreeMemory,
    report: Callable[[Progress], None],
) -> LoadedEmbedder:
    """Load an embedding model. Raises CheckpointError, InvalidRequest, MemoryPlanError."""
    settings = read_sentence_settings(checkpoint.folder)
    if pooling := checkpoint.config.get("pooling"):  # GGUF files carry it in their config
        settings = replace(settings, pooling=pooling)
    check_fit(checkpoint.tokenizer(), recipe.vocab, path)
    tokenizer = SentenceTokenizer(checkpoint.tokenizer(), settings)
    context = context_of(recipe, settings, config)
    module = recipe.blueprint()
    needed = without_prefixes(checkpoint, recipe.unused)
    if found := next(mismatches(module.declarations, needed), None):
        raise CheckpointError(found)

    def encode(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        hidden = model(tokens, lengths)
        return pooled(hidden, lengths, pooling=settings.pooling, normalise=settings.normalise)

    programs = EmbedPrograms(module, encode, context=context, batch=recipe.batch, report=report)
    memory = free.reserve(weights=module.bytes, workspace=programs.workspace)
    leaves = read_weights(module.declarations, needed, report)
    return LoadedEmbedder(
        runner=EmbedModelRunner(programs, leaves, recipe.batch),
        tokenizer=tokenizer,
        vocab=recipe.vocab,
        max_context=context,
        dimensions=recipe.embed,
        queue=config.queue,
        memory=memory,
        parts=MemoryParts(weights=module.bytes, workspace=programs.workspace),
    )


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
