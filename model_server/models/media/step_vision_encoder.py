"""Step 3.7's image input: windows over an image and the whole of it, each encoded by itself.

Names and config keys are those of Hugging Face's `Step3p7ForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.layers import Linear, LiveRows, live_of, project
from model_server.models.media.image_processor import ImageProcessor
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.qwen.tower import (
    PartNames,
    QwenTower,
    TowerShape,
    centred,
    column_rotation,
)
from model_server.models.media.qwen.tower_keys import layer_norms, plain_ffw
from model_server.models.media.qwen.vision_encoder import PatchGrid
from model_server.models.media.tower_layer import axial_theta, dense
from model_server.models.media.vision_keys import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    VISION_KEYS,
    image_token_of,
    vision_config_of,
)
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.images.forms import BILINEAR, WindowsForm
from sax.errors import CheckpointError

# Keys of config.json beside those of the text model.
OUTER = (*VISION_KEYS, "projector_bias")
# What published files call the keys of vision_config
_NAMES = {
    "heads": "num_attention_heads",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
}
_KEYS = KnownKeys(
    "step3p5",
    (
        *_NAMES.values(),
        "hidden_act",
        "image_size",
        "layer_norm_eps",
        "mlp_ratio",
        "num_channels",
        "patch_size",
        "rope_parameters",
        "rope_theta",
    ),
    {
        # Of training, and sizes that follow from others
        **ignored("attention_dropout", "initializer_range", "intermediate_size", "ls_init_value"),
        **ignored("layer_scale_init_value", "max_position_embeddings", "output_dim"),
        "ues_cls_token": one_of(False),  # so spelled
        "use_abs_posemb": one_of(True),
        "use_cls_token": one_of(False),
        "use_ln_post": one_of(False),
        "use_ln_pre": one_of(True),
        "use_rope2d": one_of(True),
    },
)
_DEFAULTS = {
    "hidden_act": "quick_gelu",
    "hidden_size": 1536,
    "image_size": 728,
    "layer_norm_eps": 1e-5,
    "mlp_ratio": 8960 / 1536,
    "num_attention_heads": 16,
    "num_hidden_layers": 47,
    "patch_size": 14,
}
_TOWER_NAMES = PartNames(
    kernel="conv1",
    positions="positional_embedding",
    layers="transformer.resblocks",
    norms=("ln_1", "ln_2"),
    attention=".attn",
    first="ln_pre",
    scales=("ls_1.gamma", "ls_2.gamma"),
)
_TOKEN_ID, _HALVINGS = 151679, 2
_SIDE = 2**_HALVINGS  # patches of a side that become one vector
_TOKEN, _NEWLINE = "<im_patch>", "<patch_newline>"
_WHOLE, _PART = ("<im_start>", "<im_end>"), ("<patch_start>", "<patch_end>")
_READ = ("max_image_size", "patch_size", "size")


class HalvingConvolution(nnx.Module):
    """A convolution over 3 x 3 patches, at every other one of both directions."""

    def __init__(self, outputs: int, inputs: int, name: str, form: WeightForm) -> None:
        kernel, bias = dense(name)
        self.live: LiveRows = nnx.data(None)
        shape = (outputs, inputs, 3, 3)
        self.kernel = weight(shape, (None,) * 4, kernel, dtype=form.dtype, spread=0.02)
        self.bias = weight((outputs,), (None,), bias, dtype=jnp.float32, spread=0.0)

    def __call__(
        self, x: jax.Array, height: jax.Array, width: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Maps f32[S, P, D] of grids i32[S] by i32[S] to f32[S, P / 4, out] of halved ones."""
        images, count, size = x.shape
        down, across = (height + 1) // 2, (width + 1) // 2
        at = jnp.arange(count // 4)[None]
        row, column = at // jnp.maximum(across, 1)[:, None], at % jnp.maximum(across, 1)[:, None]
        seen = list[jax.Array]()
        for below, right in np.ndindex(3, 3):
            y, z = 2 * row + below - 1, 2 * column + right - 1
            inside = (y >= 0) & (y < height[:, None]) & (z >= 0) & (z < width[:, None])
            place = jnp.clip(y * width[:, None] + z, 0, count - 1)
            taken = jnp.take_along_axis(x, place[..., None], axis=1)
            seen.append(jnp.where(inside[..., None], taken, 0.0))
        near = jnp.stack(seen, axis=-1).reshape(-1, size * 9)  # as the kernel has them
        kernel = self.kernel[...]
        made = project(near, kernel.reshape(kernel.shape[0], -1), live_of(self))
        made = made + self.bias[...][None]
        return made.reshape(images, count // 4, -1), down, across


class StepEncoder(nnx.Module):
    """A MediaEncoder."""

    def __init__(self, shape: TowerShape, form: WeightForm, *, biased: bool) -> None:
        size, name = shape.embed, shape.name
        self.tower = QwenTower(shape, form)
        self.halvings = nnx.List(
            [
                HalvingConvolution(
                    size * 2 ** (at + 1), size * 2**at, f"{name}.vit_downsampler{at + 1}", form
                )
                for at in range(_HALVINGS)
            ]
        )
        projector = ("vit_large_projector.weight",)
        self.projector = Linear(
            shape.out,
            size * _SIDE,
            ("embed", None),
            projector,
            form=form,
            bias=("vit_large_projector.bias",) if biased else None,
        )

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        x, height, width = self.tower(pieces, places, lengths), places[:, 0, 2], places[:, 0, 3]
        for halving in self.halvings:
            x, height, width = halving(x, height, width)
        return self.projector(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1)


class Patches(nnx.Module):
    """A merger that leaves patches as they are: this model merges them behind its tower."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


def step_vision(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    given = vision_config_of(keys)
    if given is None:
        return None
    own = {key: value for key, value in given.items() if key not in _NAMES}
    own |= {key: given[older] for older, key in _NAMES.items() if older in given}
    shape = _shape(ConfigKeys(own, _KEYS, _DEFAULTS), embed)
    biased = keys.flag("projector_bias")
    windows = _processor(keys.get(PREPROCESSOR, {}), shape)
    sides = sorted({windows.form.tile, windows.form.whole})
    patch = shape.patch[-1]
    return MediaRecipe(
        kind="image",
        build=lambda form: StepEncoder(shape, form, biased=biased),
        form=windows.form,
        prepare=windows,
        placeholder=_TOKEN,
        token=image_token_of(keys, _TOKEN_ID),
        piece=windows.grid.numbers,
        columns=windows.grid.columns,
        per_row=_SIDE**2,
        width=embed,
        pieces=tuple((side // patch) ** 2 for side in sides),
        counted="each window and the whole image",
    )


def _shape(keys: ConfigKeys, embed: int) -> TowerShape:
    """Raises CheckpointError."""
    keys.only("num_channels", 3)
    size, heads, patch = (
        keys.whole(key) for key in ("hidden_size", "num_attention_heads", "patch_size")
    )
    if size % (4 * heads):
        raise CheckpointError(
            f"vision_config has a width of {size} in {heads} heads; each head must have a multiple "
            "of 4 numbers, half of which are rotated by columns"
        )
    ffw = int(size * keys.number("mlp_ratio"))
    return TowerShape(
        layers=keys.whole("num_hidden_layers"),
        embed=size,
        heads=heads,
        out=embed,
        patch=(3, patch, patch),
        merge=1,
        theta=axial_theta(keys, "step3p5"),
        sources=_sources,
        side=keys.whole("image_size") // patch,
        taps=centred,
        name="vision_model",
        names=_TOWER_NAMES,
        norm=layer_norms(keys.number("layer_norm_eps")),
        ffw=plain_ffw(keys, size, ffw, "c_fc", "c_proj"),
        merger=lambda *_: Patches(),
        rotation=column_rotation,
    )


def _sources(size: int, _: int, name: str) -> AttentionSources:
    """Return those of torch's own attention."""
    kernel, bias = Tensor(f"{name}.in_proj_weight"), Tensor(f"{name}.in_proj_bias")
    ends = [(at * size, (at + 1) * size) for at in range(3)]
    q, k, v = (cut(kernel, *each, of=3 * size) for each in ends)
    of_q, of_k, of_v = (cut(bias, *each, of=3 * size) for each in ends)
    out, out_bias = dense(f"{name}.out_proj")
    return AttentionSources(q=q, k=k, v=v, out=out, biases=(of_q, of_k, of_v), out_bias=out_bias)


@dataclass(frozen=True, slots=True)
class Windows:
    """Prepares an image's windows and the whole of it, each as a part."""

    form: WindowsForm
    grid: PatchGrid

    def __call__(self, pixels: np.ndarray) -> PreparedMedia:
        """Cut u8[h, w, 3], as `WindowsForm` makes it."""
        tile, whole = self.form.tile, self.form.whole
        columns, rows = self.form.grid_of(pixels.shape[1], pixels.shape[0])
        made = list[PreparedMedia]()
        for row, column in np.ndindex(rows, columns):
            top = (row * columns + column) * tile
            part = self._part(pixels[top : top + tile, :tile], _PART)
            ends = column == columns - 1 and row < rows - 1
            made.append(part._replace(text=part.text + _NEWLINE) if ends else part)
        made.append(self._part(pixels[rows * columns * tile :, :whole], _WHOLE))
        return made[0]._replace(after=tuple(made[1:]))

    def _part(self, pixels: np.ndarray, marks: tuple[str, str]) -> PreparedMedia:
        part = self.grid(pixels)
        high, wide = (side // (self.grid.patch * _SIDE) for side in pixels.shape[:2])
        rows = high * wide
        text = (_TOKEN * rows).join(marks)
        return part._replace(grid=(1, high, wide), rows=rows, text=text)


def _processor(given: Mapping[str, Any], shape: TowerShape) -> Windows:
    """Return how images are cut and resized. Raises CheckpointError."""
    usual = {"image_mean": [*CLIP_MEAN], "image_std": [*CLIP_DEVIATION]}
    own = {key: value for key, value in given.items() if value is not None}
    read = ImageProcessor(usual | own, "Step3p7", _READ)
    patch, whole, tile = shape.patch[-1], read.square(728), read.whole("patch_size", 504)
    for key, side in (("size", whole), ("patch_size", tile)):
        if side % (patch * _SIDE):
            raise read.wrong(key, f"multiples of the {patch * _SIDE} pixels of a vector")
    form = WindowsForm(whole, tile, read.whole("max_image_size", 3024), read.resample(BILINEAR))
    grid = PatchGrid(
        patch=patch,
        merge=1,
        frames=1,
        scales=read.scales(0.5, 0.5),
        most=(max(whole, tile) // patch) ** 2,
        token=_TOKEN,
    )
    return Windows(form, grid)
