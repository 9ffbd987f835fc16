"""The kernels of a model on CPUs, in one line."""

from __future__ import annotations

import pytest

from model_server.config import ModelServerConfig
from model_server.kernels.cpu import native
from model_server.kernels.cpu.attention import MOST_DIM
from model_server.loading.deployment import Deployment, deploy
from model_server.loading.language import kernels_of
from model_server.loading.memory_plan import FreeMemory
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from tests.model_server.multihost.staged import LM, TINY

CONFIG = ModelServerConfig(slots=4, page_size=16, max_context=64)
HALVES = {"DTYPE": '"bfloat16"', "DIMS_PER_HEAD": "16"}
needs_library = pytest.mark.skipif(
    not native.available(), reason="sax was installed without its native kernels"
)


def deployed(mesh: tuple[int, ...] | None = None, **overrides: str) -> Deployment:
    recipe = make_recipe(LM, None, TINY | overrides)
    layout = layout_of(mesh) if mesh else layout_of()
    return deploy(recipe, None, layout, CONFIG, FreeMemory(2**30, 0))


@needs_library
def test_a_model_whose_every_matrix_is_in_tiles_leaves_nothing_to_xla() -> None:
    assert kernels_of(deployed(**HALVES)) == native.described()


@needs_library
def test_weights_that_xla_widens_in_every_step_are_named_with_their_bytes() -> None:
    assert kernels_of(deployed(**HALVES | {"DTYPE": '"float32"'})) == native.described()
    told = kernels_of(deployed(**HALVES, QUANTIZE='"float8"'))
    assert told.startswith(f"{native.described()}; XLA's for ")
    assert told.endswith("of float8_e4m3fn weights")


@needs_library
def test_heads_that_the_kernel_does_not_take_are_named() -> None:
    told = kernels_of(deployed(**HALVES | {"DIMS_PER_HEAD": str(MOST_DIM + 16)}))
    assert told.startswith(f"{native.described()}; XLA's for attention (")


def test_a_mesh_of_several_devices_is_xlas() -> None:
    told = kernels_of(deployed((1, 1, 4), **HALVES))
    assert told == "XLA's: the model's mesh has 4 devices"
