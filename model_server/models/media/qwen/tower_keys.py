"""Reads a vision_config: what the towers of Qwen2-VL and its successors have in common, and the
tower of Qwen3-VL and Qwen3.5, whose positions are also learned, on a square that is stretched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.checkpoints.media_part import VISION
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import Harmless, KnownKeys, ignored, one_of
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.feed_forward import FeedForward, GatedFeedForward
from model_server.models.layers.layers import LayerNorm, Linear, LiveRows, RmsNorm, live_of, project
from model_server.models.media.qwen.tower import BuildMerger, BuildNorm, TowerShape
from model_server.models.media.tower_layer import dense
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError

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
        self.live: LiveRows = nnx.data(None)
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
        x = project(flat, kernel.reshape(kernel.shape[0], -1), live_of(self)) + self.bias[...][None]
        return self.ffw(_GELU(self.norm(self.proj(x))))


SIZES = ("depth", "hidden_act", "hidden_size", "num_heads", "patch_size", "rope_parameters")
SIZES += ("spatial_merge_size", "temporal_patch_size")
# Images have three colours; the rest is read for videos, or for training, and sizes once more.
HARMLESS: Harmless = {
    "in_channels": one_of(3),
    "in_chans": one_of(3),
    "apply_vit_abs_pos_embed": one_of(True),
    **ignored("embed_dim", "image_size", "init_std", "spatial_patch_size", "tokens_per_second"),
}
EPSILON = 1e-6  # of every norm
_BASE = 10000.0  # of rotations by row and column


def vision_keys(
    keys: ConfigKeys,
    read: tuple[str, ...],
    defaults: Mapping[str, Any],
    others: Harmless = MappingProxyType({}),
) -> ConfigKeys:
    """Return the keys of the tower; read: those beside SIZES; others: beside HARMLESS.

    Raises CheckpointError.
    """
    given = keys.get(VISION)
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has vision_config = {given!r}; it must be an object")
    return ConfigKeys(
        given, KnownKeys(keys.family, (*SIZES, *read), {**HARMLESS, **others}), defaults
    )


def sizes_of(keys: ConfigKeys, embed: int) -> dict[str, Any]:
    """Return what every `TowerShape` has; embed: numbers of a patch. Raises CheckpointError."""
    patch, frames = keys.whole("patch_size", 14), keys.whole("temporal_patch_size", 2)
    heads = keys.whole("num_heads")
    if embed % (4 * heads):
        raise CheckpointError(
            f"vision_config has {embed} numbers of a patch in {heads} heads; each head must have a "
            "multiple of 4, a quarter of which is rotated by rows and by columns each"
        )
    return {
        "layers": keys.whole("depth"),
        "embed": embed,
        "heads": heads,
        "patch": (3, frames, patch, patch),
        "merge": keys.whole("spatial_merge_size", 2),
        "theta": _base(keys),
    }


def _base(keys: ConfigKeys) -> float:
    given = keys.get("rope_parameters", {})
    if not isinstance(given, Mapping) or set(given) - {"rope_type", "rope_theta"}:
        raise CheckpointError(
            f"vision_config has rope_parameters = {given!r}; supported: rope_type and rope_theta"
        )
    base, kind = given.get("rope_theta", _BASE), given.get("rope_type", "axial")
    if type(base) not in (int, float) or kind not in ("axial", "default"):
        raise CheckpointError(
            f"vision_config has rope_parameters = {dict(given)}; supported: the rope_type axial "
            "and a number as rope_theta"
        )
    return float(base)


def whole_numbers(keys: ConfigKeys, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return a list of layers. Raises CheckpointError."""
    given, layers = keys.get(key, default), keys.whole("depth")
    if not isinstance(given, list | tuple) or not all(
        type(each) is int and 0 <= each < layers for each in given
    ):
        raise CheckpointError(
            f"vision_config has {key} = {given!r}; give a list of its {layers} layers, from 0"
        )
    return tuple(given)


def layer_norm(size: int, name: str) -> LayerNorm:
    return LayerNorm(size, *dense(name), epsilon=EPSILON)


def layer_norms(epsilon: float) -> BuildNorm:
    return lambda size, name: LayerNorm(size, *dense(name), epsilon=epsilon)


def rms_norms(epsilon: float) -> BuildNorm:
    return lambda size, name: RmsNorm(size, (f"{name}.weight",), epsilon=epsilon)


def plain_ffw(
    keys: ConfigKeys, embed: int, ffw: int, up: str, down: str
) -> Callable[[int, str, WeightForm], nnx.Module]:
    """Builder of a feed-forward of two matrices under these names."""
    activation = activation_of(keys.get("hidden_act"))

    def build(_: int, name: str, form: WeightForm) -> FeedForward:
        return FeedForward(
            embed,
            ffw,
            up=(f"{name}.{up}.weight",),
            down=(f"{name}.{down}.weight",),
            activation=activation,
            form=form,
            biases=((f"{name}.{up}.bias",), (f"{name}.{down}.bias",)),
        )

    return build


_MERGER = MergerNames()
_LEARNED_READ = ("deepstack_visual_indexes", "intermediate_size", "num_position_embeddings")
_LEARNED_READ += ("out_hidden_size",)
_LEARNED = {
    "depth": 27,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 3584,
    "patch_size": 16,
}


def learned_tower(
    keys: ConfigKeys, deep: tuple[int, ...], merger: MergerNames = _MERGER
) -> TowerShape:
    """Return the tower; deep: layers that feed the language model, if the config says nothing.

    Raises CheckpointError.
    """
    keys = vision_keys(keys, _LEARNED_READ, _LEARNED)
    embed, count = keys.whole("hidden_size"), keys.whole("num_position_embeddings")
    side = math.isqrt(count)
    if side**2 != count:
        raise CheckpointError(
            f"vision_config has num_position_embeddings = {count}; they must form a square"
        )
    return TowerShape(
        **sizes_of(keys, embed),
        out=keys.whole("out_hidden_size"),
        patch_bias=True,
        side=side,
        deep=whole_numbers(keys, "deepstack_visual_indexes", deep),
        merger=merging(merger),
        norm=layer_norm,
        ffw=plain_ffw(keys, embed, keys.whole("intermediate_size"), "linear_fc1", "linear_fc2"),
    )
