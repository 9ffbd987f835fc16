"""What a model asks of a server, worked out from shapes alone: on any machine, in about a second.

For refusals that whoever places models can act on. Allocates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.sharding import AbstractMesh

from model_server.capacity import least_bytes, weight_bytes
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.memory_plan import human
from model_server.models.recipe import Recipe
from model_server.models.sharding import AXES
from sax.errors import MemoryPlanError
from sax.need import Need


def need_of(recipe: Recipe, checkpoint: Checkpoint | None, config: ModelServerConfig) -> Need:
    """The least that a server must have, with flags like these."""
    shape = recipe.mesh_shape or (1, 1, len(jax.devices()))
    mesh = AbstractMesh(tuple(shape), AXES)
    module = recipe.blueprint(mesh.shape["model"], checkpoint)
    memory = least_bytes(recipe, module, mesh, config) * mesh.size
    if recipe.mesh_shape:
        weights = weight_bytes(module, mesh) * mesh.size
        return Need(devices=mesh.size, memory=memory, weights=weights)
    # On fewer devices there are fewer copies.
    return Need(memory=memory, weights=recipe.blueprint(1, checkpoint).bytes)


def check_devices(recipe: Recipe, checkpoint: Checkpoint | None, config: ModelServerConfig) -> None:
    """Raises MemoryPlanError for a mesh of more devices than this server has."""
    shape = recipe.mesh_shape or ()
    wanted, here = math.prod(shape), len(jax.devices())
    if wanted <= here or len(shape) != len(AXES) or min(shape) < 1:
        return  # what is malformed, `make_mesh` refuses
    need = need_of(recipe, checkpoint, config)
    raise MemoryPlanError(
        f"the mesh {list(shape)} needs {wanted} devices with "
        f"{human(need.memory_each)} each ({human(need.memory)} in all) and this server has "
        f"{here}: publish on a larger server or override ICI_MESH_SHAPE",
        param="overrides.ICI_MESH_SHAPE",
        need=need,
    )


@contextmanager
def telling_need(
    recipe: Recipe, checkpoint: Checkpoint | None, config: ModelServerConfig
) -> Iterator[None]:
    """Puts the need of the whole model into a refusal that tells the need of one device."""
    try:
        yield
    except MemoryPlanError as exc:
        if exc.need is None:  # a flag is wrong, and more room would not help
            raise
        need = need_of(recipe, checkpoint, config)
        raise MemoryPlanError(exc.text, param=exc.param, need=need) from exc
