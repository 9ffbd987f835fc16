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
from model_server.loading.deployment import Deployment, PlacedModel
from model_server.loading.draft_loading import deployed
from sax.types import ModelSpec


def make_transfers(
    server: TransferServer, config: ModelServerConfig, deployment: Deployment
) -> KvTransfers | None:
    """Return this host's page transfers; None if the server does not take part."""
    if not (config.gives_pages or config.takes_pages):
        return None
    draft = deployed(deployment)
    pools = (deployment,) if draft is None else (deployment, draft)
    return KvTransfers(
        server,
        *(each.pool_shapes for each in pools),
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
        draft=_told_pages(deployment.draft) if deployment.draft else "",
    )
    return Disaggregation(
        contract,
        transfers,
        runner,
        room=CONTEXTS * deployment.limits.pages_per_sequence,
        page_bytes=_page_bytes(deployment, page_size),
    )


def _told_pages(placed: PlacedModel) -> str:
    """Describe one model's pages, so that two descriptions are equal if and only if these are."""
    cache = placed.cache
    heads = f"{cache.kv_heads} KV heads of {cache.key_dim} and {cache.value_dim}"
    return f"{cache.layers} layers, {heads}, {placed.kv_dtype}"


def _page_bytes(placed: PlacedModel, page_size: int) -> int:
    """Return the bytes of a page over all devices, its draft model's included."""
    own = placed.cache.bytes_per_page(page_size, placed.kv_dtype, placed.kernel.shapes)
    return own + (_page_bytes(placed.draft, page_size) if placed.draft else 0)
