"""Build a model's disaggregated prefill from its deployment."""

from __future__ import annotations

from itertools import compress

import jax
import jaxlib.version

from model_server.config import ModelServerConfig
from model_server.disaggregation.contract import Contract, source_of
from model_server.disaggregation.disaggregation import Disaggregation, Transfers
from model_server.disaggregation.handed_pages import transit_room
from model_server.disaggregation.kv_transfers import KvTransfers, TransferServer
from model_server.engine.running.ops import Runner
from model_server.loading.deployment import Deployment
from model_server.loading.draft_loading import deployed
from model_server.loading.placed_model import PlacedModel
from sax.types import ModelSpec


def make_transfers(
    server: TransferServer, config: ModelServerConfig, deployment: Deployment
) -> KvTransfers | None:
    """Return this host's page transfers; None if the server does not take part."""
    if not (config.gives_pages or config.takes_pages):
        return None
    draft = deployed(deployment)
    sets = (*deployment.layer_sets, *(draft.layer_sets if draft else ()))
    return KvTransfers(
        server,
        sets,
        gives=config.gives_pages,
        takes=config.takes_pages,
        room=transit_room(deployment.limits),
        ordinal=jax.process_index(),
    )


def make_disaggregation(
    runner: Runner, transfers: Transfers, spec: ModelSpec, deployment: Deployment
) -> Disaggregation:
    """Return the part that serving needs; both arguments cover every host of the replica."""
    cache, limits = deployment.cache, deployment.limits
    contract = Contract(
        source=source_of(spec),
        page_size=limits.page_size,
        kv_dtype=str(deployment.kv_dtype),
        layers=cache.layers,
        kv_heads=cache.kv_heads,
        key_dim=cache.key_dim,
        value_dim=cache.value_dim,
        mesh=" ".join(f"{axis}={size}" for axis, size in deployment.layout.mesh.shape.items()),
        hosts=jax.process_count(),
        jaxlib=jaxlib.version.__version__,
        draft=_told_pages(deployment.draft) if deployment.draft else "",
        near_window=limits.windows.sliding or 0,
    )
    page, window_page = _page_bytes(deployment)
    return Disaggregation(
        contract,
        transfers,
        runner,
        room=transit_room(limits),
        page_bytes=page,
        window_bytes=window_page,
    )


def _told_pages(placed: PlacedModel) -> str:
    """Describe one model's pages, so that two descriptions are equal if and only if these are."""
    cache = placed.cache
    heads = f"{cache.kv_heads} KV heads of {cache.key_dim} and {cache.value_dim}"
    told = f"{cache.layers} layers, {heads}, {placed.kv_dtype}"
    return f"{told}, hidden states of {cache.kept}" if cache.kept else told


def _page_bytes(deployment: Deployment) -> tuple[int, int]:
    """Return the bytes of a page and of a window page over all devices, with the draft model's."""
    size, window = deployment.limits.page_size, deployment.limits.windows.sliding
    flags = deployment.window_layers(window) or (False,) * deployment.cache.layers
    each = _bytes_by_layer(deployment, size)
    window_page = sum(compress(each, flags))
    draft = sum(_bytes_by_layer(deployment.draft, size)) if deployment.draft else 0
    return sum(each) - window_page + draft, window_page


def _bytes_by_layer(placed: PlacedModel, page_size: int) -> list[int]:
    return placed.cache.bytes_by_layer(page_size, placed.kv_dtype, placed.kernel.shapes)
