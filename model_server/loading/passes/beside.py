"""What a language model does beside generating: it embeds, and differentiates its loss.

The programs are compiled before the memory plan, which counts what they need; they run over the
weights of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.huggingface.sentence_transformers import (
    SentenceSettings,
    read_sentence_settings,
)
from model_server.loading.deployment import PlacedModel
from model_server.loading.loaded import LoadedEmbedder, LoadedGradients, TextEncoder
from model_server.loading.passes.embed_loading import embedding_as, with_tasks
from model_server.loading.passes.embed_runner import EmbedModelRunner, EmbedPrograms
from model_server.loading.passes.gradient_runner import GradientPrograms, GradientRunner
from model_server.loading.passes.sentence_tokenizer import SentenceTokenizer
from model_server.models.layers.whole_decoder import embedded, hidden_of
from model_server.models.tasks import EMBED, GRADIENT, sizes_of
from model_server.models.weights.weight import leaf_shapes
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from sax.errors import InvalidRequest

_BATCH = 16  # most inputs per step


@dataclass(frozen=True, slots=True)
class Beside:
    """Compiled programs beside those of the steps; None: not published for that."""

    placed: PlacedModel
    settings: SentenceSettings
    context: int
    embed: EmbedPrograms | None
    gradient: GradientPrograms | None

    @property
    def workspace(self) -> int:
        """Bytes; both may run at once."""
        each = (self.embed, self.gradient)
        return sum(programs.workspace for programs in each if programs is not None)

    def embedder(
        self,
        leaves: Sequence[jax.Array],
        checkpoint: Checkpoint | None,
        tokenizer: HfTokenizer | ByteTokenizer,
        queue: int,
    ) -> LoadedEmbedder | None:
        """Return the embedder over the weights of the steps."""
        if self.embed is None:
            return None
        recipe = self.placed.recipe
        own = recipe.tasks.matryoshka
        config = checkpoint.config if checkpoint else {}
        encoder: TextEncoder = SentenceTokenizer(tokenizer, self.settings)
        return LoadedEmbedder(
            runner=EmbedModelRunner(self.embed, leaves, _BATCH),
            tokenizer=encoder,
            vocab=recipe.vocab,
            max_context=self.context,
            dimensions=recipe.embed,
            sizes=sizes_of(config) if own is None else own,
            normalised=self.settings.normalise,
            queue=queue,
            memory=0,  # counted by the language model
        )

    def gradients(self, leaves: Sequence[jax.Array], queue: int) -> LoadedGradients | None:
        if self.gradient is None:
            return None
        return LoadedGradients(GradientRunner(self.gradient, leaves), self.context, queue)


def compile_beside(
    placed: PlacedModel, checkpoint: Checkpoint | None, tasks: frozenset[str], *, alone: bool
) -> Beside | None:
    """Compile the programs of the tasks beside generating; None if there are none.

    alone: this process runs the whole model. Raises InvalidRequest if it does not, and for tensors
    that cannot be differentiated by.
    """
    if not tasks & {EMBED, GRADIENT}:
        return None
    if not alone:
        raise InvalidRequest(
            "TASKS beside generate run in one process, but this model spans several hosts or "
            "stages: publish it for them on one host, or leave TASKS out",
            param="overrides.TASKS",
        )
    recipe = placed.recipe
    folder = checkpoint.folder if checkpoint else None
    settings = with_tasks(read_sentence_settings(folder), checkpoint, recipe.tasks)
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
            report=lambda _: None,
            leaves=leaves,
        )
    if GRADIENT in tasks:
        gradient = GradientPrograms(
            placed.blueprint,
            leaves,
            inputs=recipe.tasks.gradient_inputs,
            weights=recipe.tasks.gradient_weights,
            context=context,
            embed=recipe.embed,
        )
    return Beside(placed, settings, context, embed, gradient)
