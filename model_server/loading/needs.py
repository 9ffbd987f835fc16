"""Computes what a model needs of a server from shapes alone: on any machine, in about a second.

Refusals include it, so that the assigner can act on them. Allocates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.islands import island_devices
from model_server.loading.asked_limits import AskedLimits
from model_server.loading.device_memory import layout_for
from model_server.loading.placed_model import place_model
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import ONE_DEVICE
from model_server.models.weights.weight import borrowed_weights
from sax.errors import MemoryPlanError
from sax.format import human_bytes as human
from sax.need import Need


def need_of(recipe: Recipe, checkpoint: Checkpoint | None, config: ModelServerConfig) -> Need:
    """Return the least a server must have, given flags like these."""
    placed = place_model(recipe, checkpoint, layout_for(recipe))
    devices = placed.layout.mesh.size
    memory = AskedLimits(placed, config).least_bytes * devices
    if recipe.mesh_shape:
        return Need(devices=devices, memory=memory, weights=placed.weight_bytes * devices)
    # Fewer devices hold fewer copies of replicated weights, so count one copy.
    whole = recipe.blueprint(ONE_DEVICE, checkpoint)
    weights = whole.bytes
    if (opened := recipe.draft) is not None:
        draft = opened.recipe.blueprint(ONE_DEVICE, opened.checkpoint)
        borrowed = borrowed_weights(draft, whole) if opened.is_head else {}
        weights += draft.bytes - sum(draft.declarations[each].bytes for each in borrowed)
    return Need(memory=memory, weights=weights)


def check_devices(recipe: Recipe, checkpoint: Checkpoint | None, config: ModelServerConfig) -> None:
    """Raise MemoryPlanError for a mesh of more devices than this server has."""
    wanted, there = layout_for(recipe).mesh.size, len(island_devices())
    if wanted <= there:
        return
    need = need_of(recipe, checkpoint, config)
    raise MemoryPlanError(
        f"the model needs {wanted} devices with {human(need.memory_each)} each "
        f"({human(need.memory)} in all); this server has {there}: publish on a larger server or "
        "override ICI_MESH_SHAPE",
        param="overrides.ICI_MESH_SHAPE",
        need=need,
    )


@contextmanager
def telling_need(
    recipe: Recipe, checkpoint: Checkpoint | None, config: ModelServerConfig
) -> Iterator[None]:
    """Replace the need of one device in a MemoryPlanError with that of the whole model."""
    try:
        yield
    except MemoryPlanError as exc:
        if exc.need is None:  # a flag is wrong; more memory would not help
            raise
        need = need_of(recipe, checkpoint, config)
        raise MemoryPlanError(exc.text, param=exc.param, need=need) from exc
