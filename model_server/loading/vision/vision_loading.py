"""Loads a model of images: settings, compiled programs, memory plan, then weights.

Every number of images is compiled before the first request; a compiled call cannot compile again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.engine.step_program import everywhere
from model_server.loading.batch_plan import BatchPlan, code_and_most, compiled_all
from model_server.loading.images.decoders import check_pillow
from model_server.loading.kinds import AskedModel
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.loaded_model import Report
from model_server.loading.vision.loaded_vision import WAIT_S, LoadedVision, SeenImage
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
from model_server.models.weights.sharding import AXES, Layout
from model_server.models.weights.weight import Declaration, leaf_shapes
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts
from sax.types import ModelSpec, Progress


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

    made = fill(declared, draw_one, "drawing weights", report)
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


class VisionPrograms:
    """The compiled numbers of images of one model, and what prepares its weights."""

    def __init__(self, recipe: VisionRecipe, settings: ImageSettings, layout: Layout) -> None:
        """layout: the recipe's, on devices; each of them has all weights."""
        self.settings = settings
        self.sizes = layout.even(recipe.batches, AXES)
        self._recipe, self._layout = recipe, layout
        self._leaves = leaf_shapes(recipe.blueprint, layout)
        self._where = everywhere(self._leaves[0].sharding)
        made = jax.jit(self._prepared, out_shardings=self._where).lower(self._leaves)
        self._weights = jax.tree.map(
            lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=self._where),
            made.out_info,
        )
        self._prepare = made.compile()
        self._compiled: dict[int, Any] = {}

    def compile(self, report: Report) -> None:
        self._compiled = compiled_all(
            self.sizes, lambda size: self._lowered(size).compile(), report
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the prepared weights."""
        return sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(self._weights))

    @property
    def workspace(self) -> int:
        """Bytes of all programs' code, and of the largest temporaries and results, or of the
        weights as they are read: both are there until they are prepared.
        """
        code, used = code_and_most(self._compiled.values())
        return code + max(self._recipe.blueprint.bytes, used)

    def prepare(self, leaves: Sequence[jax.Array]) -> Any:
        """Return the weights as programs take them; the given ones are needed no longer."""
        return jax.block_until_ready(self._prepare(list(leaves)))

    def run(self, weights: Any, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map u8[B, S, S, 3] to vectors f32[B, D] and log-probabilities f32[B, labels]."""
        vectors, scores = self._compiled[len(pixels)](weights, pixels)
        return np.asarray(vectors), np.asarray(scores)

    def close(self) -> None:
        self._compiled.clear()

    def _prepared(self, leaves: list[jax.Array]) -> Any:
        return self._recipe.blueprint.assemble(leaves).prepared()

    def _lowered(self, size: int) -> jax.stages.Lowered:
        side, colours = self.settings.form.size, self.settings.colours

        def run(weights: Any, pixels: jax.Array) -> tuple[jax.Array, jax.Array]:
            mean, deviation = (
                jnp.asarray(each, jnp.float32) for each in (colours.mean, colours.deviation)
            )
            scaled = pixels.astype(jnp.float32) * jnp.float32(colours.scale)
            seen = self._recipe.see(weights, (scaled - mean) / deviation)
            return seen.vectors, jax.nn.log_softmax(seen.logits)

        rows = self._layout.rows(size, AXES)
        pixels = jax.ShapeDtypeStruct((size, side, side, 3), jnp.uint8, sharding=rows)
        return jax.jit(run, out_shardings=rows).lower(self._weights, pixels)


class VisionBatches:
    """Programs and weights of a model of images. Not thread-safe: one thread calls it."""

    def __init__(self, programs: VisionPrograms, leaves: Sequence[jax.Array]) -> None:
        self._programs = programs
        self._weights = programs.prepare(leaves)
        self.closed = False

    def group(self, image: np.ndarray) -> None:
        """All images may share a batch."""

    def run(self, images: Sequence[np.ndarray]) -> list[SeenImage]:
        """Return scores and vector of each image u8[S, S, 3]; at most the largest batch."""
        size = next(size for size in self._programs.sizes if size >= len(images))
        padded = [*images, *[images[0]] * (size - len(images))]
        vectors, scores = self._programs.run(self._weights, np.stack(padded))
        return [SeenImage(vectors[row], scores[row]) for row in range(len(images))]

    def warm(self, report: Report) -> None:
        """Run every program once, so that no request pays for a first run."""
        side = self._programs.settings.form.size
        for done, size in enumerate(self._programs.sizes):
            report(Progress("running bucket", done, len(self._programs.sizes)))
            self.run([np.zeros((side, side, 3), np.uint8)] * size)

    def close(self) -> None:
        """Release weights and programs. Idempotent."""
        self._weights = None
        self._programs.close()
        self.closed = True
