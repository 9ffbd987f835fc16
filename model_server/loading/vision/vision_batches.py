"""Computes scores and vectors of images: pad to a compiled number of them, then one call.

Every number of images is compiled before the first request; a compiled call cannot compile again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.engine.step_program import everywhere
from model_server.loading.batch_plan import code_and_most, compiled_all
from model_server.loading.loaded_model import Report
from model_server.loading.vision.loaded_vision import SeenImage
from model_server.models.vision.vision_recipe import ImageSettings, VisionRecipe
from model_server.models.weights.axis_rules import AXES
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import leaf_shapes
from sax.types import Progress


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
