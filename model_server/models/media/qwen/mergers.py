"""Ways in which towers make vectors of the language model from patches that lie next to each other.

Sources are those of the families; names of tensors are those of published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import LayerNorm, Linear, project
from model_server.models.media.qwen.tower import BuildMerger, BuildNorm, TowerShape
from model_server.models.media.tower_layer import dense
from model_server.models.weights.weight import WeightForm, weight

_GELU = activation_of("gelu")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergerNames:
    """Names that checkpoints give to the parts that merge patches, below their own."""

    norm: str = "norm"
    up: str = "linear_fc1"
    down: str = "linear_fc2"


class PatchMerger(nnx.Module):
    """Makes one vector of each square of patches, by two matrices."""

    def __init__(
        self,
        shape: TowerShape,
        name: str,
        form: WeightForm,
        names: MergerNames,
        *,
        late: bool,
        norm: BuildNorm | None = None,
    ) -> None:
        """late: the norm is over the square, not over each patch. norm: None: as of the tower."""
        self.size, self.late = shape.embed * shape.merge**2, late
        build, size = norm or shape.norm, self.size if late else shape.embed
        self.norm = build(size, f"{name}.{names.norm}")
        up, down = (f"{name}.{part}" for part in (names.up, names.down))
        self.up = _widening(self.size, self.size, up, form)
        self.down = _narrowing(shape.out, self.size, down, form)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[N, D] to f32[N / merge^2, out]."""
        x = x if self.late else self.norm(x)
        x = x.reshape(-1, self.size)
        x = self.norm(x) if self.late else x
        return self.down(_GELU(self.up(x)))


def merging(
    names: MergerNames, own: str | None = None, norm: BuildNorm | None = None
) -> BuildMerger:
    """Return the builder of a `PatchMerger`.

    own: its whole name; None: that below the tower. norm: None: as of the tower.
    """

    def build(shape: TowerShape, name: str, form: WeightForm) -> PatchMerger:
        return PatchMerger(shape, own or f"{name}.merger", form, names, late=False, norm=norm)

    return build


def merging_late(names: MergerNames) -> BuildMerger:
    """Return the builder of one that norms squares, of its own name."""
    return lambda shape, name, form: PatchMerger(shape, name, form, names, late=True)


def _widening(outputs: int, inputs: int, name: str, form: WeightForm) -> Linear:
    kernel, bias = dense(name)
    return Linear(outputs, inputs, ("ffw", "embed"), kernel, form=form, bias=bias)


def _narrowing(outputs: int, inputs: int, name: str, form: WeightForm) -> Linear:
    kernel, bias = dense(name)
    return Linear(outputs, inputs, ("embed", "ffw"), kernel, form=form, bias=bias)


class ConvolvedMerger(nnx.Module):
    """A convolution over each square, then a norm and a gated feed-forward, as GLM-5.3 has them."""

    def __init__(
        self, shape: TowerShape, name: str, form: WeightForm, ffw: int, activation: Activation
    ) -> None:
        """name: of the tower. ffw: numbers inside of the feed-forward."""
        self.size, below = shape.embed * shape.merge**2, f"{name}.merger"
        kernel, bias = dense(f"{name}.downsample")
        self.kernel = weight(
            (shape.out, shape.embed, shape.merge, shape.merge),
            (None,) * 4,
            kernel,
            dtype=form.dtype,
            spread=0.02,
        )
        self.bias = weight((shape.out,), (None,), bias, dtype=jnp.float32, spread=0.0)
        proj = (f"{below}.proj.weight",)
        self.proj = Linear(shape.out, shape.out, (None, "embed"), proj, form=form)
        self.norm = LayerNorm(shape.out, *dense(f"{below}.post_projection_norm"), epsilon=1e-5)
        self.ffw = GatedFeedForward.hugging_face(
            shape.out, ffw, below, activation=activation, form=form
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[N, D] to f32[N / merge^2, out]."""
        kernel = self.kernel[...]
        # The kernel has the numbers of all patches at one place of a vector together.
        squares = x.reshape(-1, self.size // x.shape[-1], x.shape[-1]).swapaxes(1, 2)
        flat = squares.reshape(-1, self.size)
        x = project(flat, kernel.reshape(kernel.shape[0], -1)) + self.bias[...][None]
        return self.ffw(_GELU(self.norm(self.proj(x))))
