"""Check the overrides of a spec before it is acknowledged, where somebody knows them.

The model servers know their models, this admin server does not: one that could load the model is
asked. Without an answer the spec is accepted, and a load that fails says why.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from admin_server.cell.modelets import Modelets, is_bad_override
from admin_server.ledger.placement import bare, loaded_overrides
from sax.errors import SaxError
from sax.types import ModelSpec, ServerInfo

_log = logging.getLogger(__name__)


async def check_spec(
    modelets: Modelets, spec: ModelSpec, infos: Sequence[ServerInfo], silent: Collection[str]
) -> None:
    """Raises InvalidRequest naming the override with which no load can succeed."""
    server = knowing_server(spec, infos, silent)
    if server is None or not loaded_overrides(spec.overrides):
        return
    try:
        await modelets.check(server, spec)
    except SaxError as exc:
        if is_bad_override(exc):
            raise
        # It is busy, gone, or of a version that checks nothing.
        _log.info("the overrides of %s were not checked: %s", spec.model_id, exc.text)


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
