"""Build a model's disaggregated prefill from its deployment."""

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
from model_server.loading.deployment import Deployment
from sax.types import ModelSpec


def make_transfers(
    server: TransferServer, config: ModelServerConfig, deployment: Deployment
) -> KvTransfers | None:
    """Return this host's page transfers; None if the server does not take part."""
    if not (config.gives_pages or config.takes_pages):
        return None
    return KvTransfers(
        server,
        deployment.pool_shapes,
        gives=config.gives_pages,
        takes=config.takes_pages,
        room=CONTEXTS * deployment.limits.pages_per_sequence,
        ordinal=jax.process_index(),
    )


def make_disaggregation(
    runner: MovableRunner, transfers: Transfers, spec: ModelSpec, deployment: Deployment
) -> Disaggregation:
    """Return the part that serving needs; both arguments cover every host of the replica."""
    cache, page_size = deployment.cache, deployment.limits.page_size
    contract = Contract(
        source=source_of(spec),
        page_size=page_size,
        kv_dtype=str(deployment.kv_dtype),
        layers=cache.layers,
        kv_heads=cache.kv_heads,
        key_dim=cache.key_dim,
        value_dim=cache.value_dim,
        mesh=" ".join(f"{axis}={size}" for axis, size in deployment.layout.mesh.shape.items()),
        hosts=jax.process_count(),
        jaxlib=jaxlib.version.__version__,
    )
    return Disaggregation(
        contract,
        transfers,
        runner,
        room=CONTEXTS * deployment.limits.pages_per_sequence,
        page_bytes=cache.bytes_per_page(page_size, deployment.kv_dtype, deployment.kernel.shapes),
    )
