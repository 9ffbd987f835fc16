"""Loads a model of images: settings, compiled programs, memory plan, then weights."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.loading.batch_plan import BatchPlan
from model_server.loading.images.image_decoder import check_pillow
from model_server.loading.kinds import AskedModel
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.loaded_model import Report
from model_server.loading.vision.loaded_vision import WAIT_S, LoadedVision
from model_server.loading.vision.vision_batches import VisionBatches, VisionPrograms
from model_server.loading.weights import fill, mismatches, place, read_weights
from model_server.models.overrides import apply_overrides
from model_server.models.registry import vision_class
from model_server.models.vision.image_settings import IMAGENET, form_of, read_image_settings
from model_server.models.vision.vision_recipe import (
    ImageSettings,
    VisionClass,
    VisionRecipe,
    needed_of,
)
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Declaration
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts
from sax.types import ModelSpec


def plan(asked: AskedModel, context: LoadContext, report: Report) -> BatchPlan[LoadedVision]:
    """Compile the programs of a model that classifies and embeds images.

    Raises CheckpointError, InvalidRequest, and LoadFailed without Pillow.
    """
    check_pillow()
    spec, checkpoint = asked.spec, asked.checkpoint
    model = vision_class(spec.model_path, asked.config)
    assert model is not None, "the kind was chosen by it"
    recipe = configured(model, spec, checkpoint)
    layout = recipe.layout.placed(jax.local_devices())
    source = _source(recipe, spec, checkpoint, model.unused)
    settings = _settings(recipe, checkpoint)
    programs = VisionPrograms(recipe, settings, layout)
    programs.compile(report)
    return BatchPlan(
        context=context,
        spec=spec,
        layout=layout,
        parts=MemoryParts(weights=programs.weight_bytes, workspace=programs.workspace),
        runner=lambda report: VisionBatches(programs, source.leaves(layout, report)),
        loaded=partial(
            LoadedVision,
            form=settings.form,
            labels=recipe.labels,
            top_k=min(recipe.top_k, len(recipe.labels)),
            batching={ONLY: Batching(max(programs.sizes), WAIT_S, context.config.queue)},
        ),
    )


def configured(model: VisionClass, spec: ModelSpec, checkpoint: Checkpoint | None) -> VisionRecipe:
    """Return the recipe of a publish. Raises InvalidRequest, CheckpointError."""
    if checkpoint is None and model.needs_checkpoint:
        raise InvalidRequest(
            f"{model.path} takes its sizes from a checkpoint, not from None", param="checkpoint"
        )
    values = apply_overrides(model.overridable, spec.overrides, model.path)
    return model.configure(None if checkpoint is None else checkpoint.config, values)


def _settings(recipe: VisionRecipe, checkpoint: Checkpoint | None) -> ImageSettings:
    if checkpoint is not None:
        return read_image_settings(checkpoint.folder, recipe.image_size)
    assert recipe.image_size is not None, "a class without a checkpoint has a size of its own"
    return ImageSettings(form_of(recipe.image_size), IMAGENET)


@dataclass(frozen=True, slots=True)
class _WeightsToCome:
    """Source of weights that were checked against the recipe and are not read yet."""

    recipe: VisionRecipe
    checkpoint: Checkpoint | None  # None: random weights
    seed: int

    def leaves(self, layout: Layout, report: Report) -> list[jax.Array]:
        declared = self.recipe.blueprint.declarations
        if self.checkpoint is None:
            return _drawn(declared, self.seed, layout, report)
        return read_weights(declared, self.checkpoint, report, layout)


def _drawn(
    declared: Sequence[Declaration], seed: int, layout: Layout, report: Report
) -> list[jax.Array]:
    """Draw every weight from the seed and its own name, on the host.

    The programs of `random_weights` draw each device's rows of matrices; here every device has all
    of them, and compiling those for each shape of a kernel would take most of the load.
    """

    def draw_one(weight: Declaration) -> list[jax.Array]:
        numbers = _numbers(weight, seed)
        return [place(leaf, layout, lambda region: numbers[region]) for leaf in weight.leaves]

    made = fill(declared, draw_one, "drawing weights", report, lambda weights: False)
    return [leaf for leaves in made for leaf in leaves]


def _numbers(weight: Declaration, seed: int) -> np.ndarray:
    if not weight.spread:
        return np.full(weight.shape, 1 if weight.spread is None else 0, np.float32)
    bits = np.random.PCG64((seed, zlib.crc32(weight.path.encode())))
    drawn = np.random.Generator(bits).standard_normal(weight.shape, np.float32)
    return drawn * np.float32(weight.spread)


def _source(
    recipe: VisionRecipe, spec: ModelSpec, checkpoint: Checkpoint | None, unused: tuple[str, ...]
) -> _WeightsToCome:
    """Raises CheckpointError naming a tensor that does not fit."""
    seed = zlib.crc32(spec.model_id.encode())
    if checkpoint is None:
        return _WeightsToCome(recipe, None, seed)
    needed = needed_of(checkpoint, unused)
    if found := next(mismatches(recipe.blueprint.declarations, needed), None):
        raise CheckpointError(found)
    return _WeightsToCome(recipe, needed, seed)
