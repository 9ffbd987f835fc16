"""Build a model's disaggregated prefill from its recipe and mesh."""

from __future__ import annotations

import jax
import jaxlib.version

from model_server.config import ModelServerConfig
from model_server.disaggregation.contract import Contract, source_of
from model_server.disaggregation.disaggregation import Disaggregation
from model_server.disaggregation.handoff_runner import MovableRunner
from model_server.disaggregation.kv_transfers import KvTransfers
from model_server.disaggregation.transfer_server import TransferServer
from model_server.disaggregation.transfers import CONTEXTS, Transfers
from model_server.engine.types import EngineLimits
from model_server.loading.capacity import cache_of, kernel_of, kv_dtype, pool_shapes
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout
from sax.types import ModelSpec


def make_transfers(
    server: TransferServer,
    config: ModelServerConfig,
    recipe: Recipe,
    limits: EngineLimits,
    layout: Layout,
) -> KvTransfers | None:
    """Return this host's page transfers; None if the server does not take part."""
    if not (config.gives_pages or config.takes_pages):
        return None
    return KvTransfers(
        server,
        pool_shapes(recipe, limits, layout),
        gives=config.gives_pages,
        takes=config.takes_pages,
        room=CONTEXTS * limits.pages_per_sequence,
        ordinal=jax.process_index(),
    )


def make_apart(
    runner: MovableRunner,
    transfers: Transfers,
    spec: ModelSpec,
    recipe: Recipe,
    limits: EngineLimits,
    layout: Layout,
) -> Disaggregation:
    """Return the part that serving needs; both arguments cover every host of the replica."""
    cache, dtype = cache_of(recipe, layout), kv_dtype(recipe, layout)
    contract = Contract(
        source=source_of(spec),
        page_size=limits.page_size,
        kv_dtype=str(dtype),
        layers=cache.layers,
        kv_heads=cache.kv_heads,
        key_dim=cache.key_dim,
        value_dim=cache.value_dim,
        mesh=" ".join(f"{axis}={size}" for axis, size in layout.mesh.shape.items()),
        hosts=jax.process_count(),
        jaxlib=jaxlib.version.__version__,
    )
    return Disaggregation(
        contract,
        transfers,
        runner,
        room=CONTEXTS * limits.pages_per_sequence,
        page_bytes=cache.bytes_per_page(limits.page_size, dtype, kernel_of(recipe, layout).shapes),
    )
