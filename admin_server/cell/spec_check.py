"""Check a spec before it is acknowledged, where somebody can judge it.

The model servers know their models and reach the hubs that checkpoints come from, this admin server
does neither: one that could load the model is asked. Where none has joined, the names of overrides
are compared with those that sax's own models take. What nobody could judge is accepted, and a load
that fails says why.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from admin_server.cell.modelets import Modelets, is_lasting
from admin_server.ledger.placement import bare, loaded_overrides
from sax.errors import CheckpointUnreachable, SaxError
from sax.overrides.known_paths import check_names, unknown_path
from sax.references import parse_reference
from sax.types import ModelSpec, ServerInfo

_log = logging.getLogger(__name__)


async def check_spec(
    modelets: Modelets,
    spec: ModelSpec,
    infos: Sequence[ServerInfo],
    silent: Collection[str],
    old: ModelSpec | None = None,
) -> ModelSpec:
    """Return the spec to record: what a hub has is named with its commit, for every replica.

    old: the spec that this one replaces. Raises InvalidRequest naming the override with which no
    load can succeed, CheckpointError for a checkpoint that cannot be fetched.
    """
    new = old is None or old.checkpoint != spec.checkpoint
    fetched = new and parse_reference(spec.checkpoint) is not None
    server, overrides = knowing_server(spec, infos, silent), loaded_overrides(spec.overrides)
    if server is None:
        check_names(spec.model_path, overrides)
    if server is None or not (fetched or overrides):
        return spec
    try:
        pinned = await modelets.check(server, spec if fetched else replace(spec, checkpoint=""))
    except SaxError as exc:
        if is_lasting(exc) or isinstance(exc, CheckpointUnreachable):
            raise
        # It is busy, gone, or of a version that checks nothing.
        _log.info("the spec of %s was not checked: %s", spec.model_id, exc.text)
        return spec
    return replace(spec, checkpoint=pinned) if fetched and pinned else spec


def unjudged(spec: ModelSpec, infos: Sequence[ServerInfo]) -> tuple[str, ...]:
    """Return a warning of a model that neither a server that has joined nor sax itself knows."""
    why = unknown_path(spec.model_path)
    return (why,) if why and knowing_server(spec, infos, ()) is None else ()


def knowing_server(
    spec: ModelSpec, infos: Sequence[ServerInfo], silent: Collection[str]
) -> str | None:
    """A server that serves the model path and answers, if there is one."""
    path = bare(spec.model_path)
    return next(
        (
            info.address
            for info in infos
            if info.address not in silent and path in map(bare, info.model_paths)
        ),
        None,
    )
