"""From a recipe and its mesh to what a model needs to have prompts computed apart."""

from __future__ import annotations

import jax
import jaxlib.version
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.capacity import kv_dtype
from model_server.config import ModelServerConfig
from model_server.disaggregation.apart import CONTEXTS, Apart
from model_server.disaggregation.contract import Contract, source_of
from model_server.disaggregation.kv_transfers import KvTransfers
from model_server.disaggregation.transfer_server import TransferServer
from model_server.engine.types import EngineLimits
from model_server.kernels.pages import LayerPages, allocate
from model_server.models.recipe import Recipe
from sax.types import ModelSpec


def make_transfers(
    server: TransferServer,
    config: ModelServerConfig,
    recipe: Recipe,
    limits: EngineLimits,
    mesh: Mesh,
) -> KvTransfers | None:
    """This host's share; None where the server takes no part."""
    if not (config.gives_pages or config.takes_pages):
        return None
    return KvTransfers(
        server,
        pool_shapes(recipe, limits, mesh),
        gives=config.gives_pages,
        takes=config.takes_pages,
        room=CONTEXTS * limits.pages_per_sequence,
        ordinal=jax.process_index(),
    )


def make_apart(
    transfers: KvTransfers, spec: ModelSpec, recipe: Recipe, limits: EngineLimits, mesh: Mesh
) -> Apart:
    """What serving needs; `transfers` moves the pages of every host of the replica."""
    cache, dtype = recipe.cache(mesh.shape["model"]), kv_dtype(recipe)
    contract = Contract(
        source=source_of(spec),
        page_size=limits.page_size,
        kv_dtype=str(dtype),
        layers=cache.layers,
        kv_heads=cache.kv_heads,
        key_dim=cache.key_dim,
        value_dim=cache.value_dim,
        mesh=" ".join(f"{axis}={size}" for axis, size in mesh.shape.items()),
        hosts=jax.process_count(),
        jaxlib=jaxlib.version.__version__,
    )
    return Apart(
        contract,
        transfers,
        room=CONTEXTS * limits.pages_per_sequence,
        page_bytes=cache.bytes_per_page(limits.page_size, dtype),
    )


def by_heads(recipe: Recipe, mesh: Mesh) -> NamedSharding:
    """Where the pages of the pool lie."""
    cache = recipe.cache(mesh.shape["model"])
    return NamedSharding(mesh, PartitionSpec(None, "model" if cache.axis else None))


def pool_shapes(recipe: Recipe, limits: EngineLimits, mesh: Mesh) -> tuple[LayerPages, ...]:
    """The pool's arrays, before there are any."""
    cache, sharding = recipe.cache(mesh.shape["model"]), by_heads(recipe, mesh)
    shapes = jax.eval_shape(
        lambda: allocate(cache, limits.pages, limits.page_size, kv_dtype(recipe))
    )
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes
    )
