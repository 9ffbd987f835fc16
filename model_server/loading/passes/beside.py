"""Passes of a language model beside generating: it embeds, and differentiates its loss.

The programs are compiled before the memory plan, which counts what they need; they run over the
weights of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.huggingface.sentence_transformers import (
    SentenceSettings,
    read_sentence_settings,
)
from model_server.engine.compiling import Programs
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.loaded_model import Report
from model_server.loading.passes.embed_loading import embedding_as, with_tasks
from model_server.loading.passes.embed_programs import EmbedPrograms
from model_server.loading.passes.gradient_programs import GradientPrograms
from model_server.loading.passes.loaded_passes import (
    WAIT_S,
    LoadedEmbedder,
    LoadedGradients,
    TextEncoder,
)
from model_server.loading.passes.pass_programs import PassBatches, PassPrograms
from model_server.loading.passes.sentence_tokenizer import SentenceTokenizer
from model_server.loading.placed_model import PlacedModel
from model_server.models.layers.whole_decoder import embedded, hidden_of
from model_server.models.tasks import EMBED, GRADIENT, sizes_of
from model_server.models.weights.sharding import spans_hosts
from model_server.models.weights.weight import leaf_shapes
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from sax.errors import InvalidRequest
from sax.types import Progress

_BATCH = 16  # most inputs per step


def _quiet(_: Progress) -> None:
    """The caller has no report yet: it compiles before it plans."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Programs beside those of the steps; None: not published for that."""

    placed: PlacedModel
    settings: SentenceSettings
    context: int
    embed: EmbedPrograms | None
    gradient: GradientPrograms | None

    @property
    def parts(self) -> list[PassPrograms[Any, Any]]:
        return [each for each in (self.embed, self.gradient) if each is not None]

    @property
    def lowers(self) -> dict[str, Callable[[], jax.stages.Lowered]]:
        """Functions that trace each program, by name."""
        return {name: lower for each in self.parts for name, lower in each.lowers.items()}

    @property
    def workspace(self) -> int:
        """Bytes; both may run at once."""
        return sum(programs.workspace for programs in self.parts)

    def compile(self, programs: Programs, *, largest: bool = False) -> PlacedModel:
        """Compile all, or only the largest of each kind; return the model with the memory that they
        need.
        """
        for each in self.parts:
            each.compile(_quiet, programs, [each.largest] if largest else None)
        return replace(self.placed, beside=self.workspace)

    def embedder(
        self,
        leaves: Sequence[jax.Array],
        checkpoint: Checkpoint | None,
        tokenizer: HfTokenizer | ByteTokenizer,
        queue: int,
        report: Report,
    ) -> LoadedEmbedder | None:
        """Return the embedder over the weights of the steps, once each of its programs has run."""
        if self.embed is None:
            return None
        recipe = self.placed.recipe
        own = recipe.tasks.matryoshka
        config = checkpoint.config if checkpoint else {}
        encoder: TextEncoder = SentenceTokenizer(tokenizer, self.settings)
        runner = PassBatches(self.embed, leaves)
        runner.warm(report)
        return LoadedEmbedder(
            runner=runner,
            tokenizer=encoder,
            vocab=recipe.vocab,
            max_context=self.context,
            dimensions=recipe.embed,
            sizes=sizes_of(config) if own is None else own,
            normalised=self.settings.normalise,
            batching={ONLY: Batching(_BATCH, WAIT_S, queue)},
            devices=self.placed.layout.mesh.size,
            memory=0,  # counted by the language model
        )

    def gradients(
        self, leaves: Sequence[jax.Array], queue: int, report: Report
    ) -> LoadedGradients | None:
        """Return the gradients by the weights of the steps, once each program has run."""
        if self.gradient is None:
            return None
        runner = PassBatches(self.gradient, leaves)
        runner.warm(report)
        return LoadedGradients(
            runner=runner,
            max_context=self.context,
            batching={ONLY: Batching(self.gradient.batch, WAIT_S, queue)},
            devices=self.placed.layout.mesh.size,
        )


def beside_of(
    placed: PlacedModel, checkpoint: Checkpoint | None, tasks: frozenset[str]
) -> Beside | None:
    """Return the programs of the tasks beside generating, not compiled yet; None if there are none.

    Raises InvalidRequest if the model spans hosts, and for tensors that cannot be differentiated
    by.
    """
    if not tasks & {EMBED, GRADIENT}:
        return None
    if spans_hosts(placed.layout):
        raise InvalidRequest(
            "TASKS beside generate run in one process, but this model spans several hosts or "
            "stages: publish it for them on one host, or leave TASKS out",
            param="overrides.TASKS",
        )
    recipe = placed.recipe
    folder = checkpoint.folder if checkpoint else None
    settings = with_tasks(read_sentence_settings(folder), checkpoint, recipe.tasks)
    if settings.dense:
        raise InvalidRequest(
            f"this checkpoint has dense layers over its vectors ({settings.dense[0].folder}), "
            'which are not computed beside generating: publish it with TASKS=["embed"]',
            param="overrides.TASKS",
        )
    context = min(recipe.tasks.pass_context, recipe.max_context)
    leaves = leaf_shapes(placed.blueprint, placed.layout)

    def hidden(decoder: object, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return hidden_of(decoder, embedded(decoder, tokens), lengths)  # pyright: ignore[reportArgumentType]

    embed = gradient = None
    if EMBED in tasks:
        encode = embedding_as(settings, "last", hidden)
        embed = EmbedPrograms(
            placed.blueprint,
            encode,
            context=context,
            batch=_BATCH,
            leaves=leaves,
        )
    if GRADIENT in tasks:
        gradient = GradientPrograms(
            placed.blueprint,
            leaves,
            inputs=recipe.tasks.gradient_inputs,
            weights=recipe.tasks.gradient_weights,
            context=context,
            embed=recipe.row,
        )
    return Beside(placed, settings, context, embed, gradient)
