"""Which tasks a language model's family is loaded for."""

from __future__ import annotations

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.huggingface.sentence_transformers import read_sentence_settings
from model_server.models.recipe import Recipe
from model_server.models.tasks import GENERATE
from sax.errors import InvalidRequest


def tasks_of(recipe: Recipe, checkpoint: Checkpoint | None) -> frozenset[str]:
    """Return the names of the tasks. Raises CheckpointError, InvalidRequest."""
    if checkpoint is None:
        tasks = recipe.tasks.of(None, embeds=False, generates=recipe.causal)
        if GENERATE not in tasks:
            raise InvalidRequest(
                'TASKS without generate needs a checkpoint: "None" has random weights',
                param="overrides.TASKS",
            )
        return tasks
    config = checkpoint.config
    settings = read_sentence_settings(checkpoint.folder)
    own = bool(config.get("pooling")) or settings.embeds
    reranks = settings.score is not None
    return _checked(
        recipe, recipe.tasks.of(config, embeds=own, generates=recipe.causal, reranks=reranks)
    )


def _checked(recipe: Recipe, tasks: frozenset[str]) -> frozenset[str]:
    """Raise InvalidRequest for tasks that read inputs as no prompt of this model is read."""
    if recipe.bidirectional_prompt is not None and (others := tasks - {GENERATE}):
        raise InvalidRequest(
            f"TASKS has {min(others)}, and this model, whose tokens of a prompt all see each "
            "other, only generates: publish it without TASKS",
            param="overrides.TASKS",
        )
    return tasks


def generates(recipe: Recipe, checkpoint: Checkpoint | None) -> bool:
    return GENERATE in tasks_of(recipe, checkpoint)
