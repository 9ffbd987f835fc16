"""Which loads keep their programs for the next start, and where."""

from __future__ import annotations

from pathlib import Path

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.compiling import Programs
from model_server.islands.proxy_backend import is_proxied
from model_server.loading.deployment import Deployment
from model_server.programs.last_start import file_of
from model_server.programs.start_key import start_key
from model_server.programs.start_programs import StartPrograms
from sax.types import ModelSpec

_FOLDER = "starts"


def start_programs(
    spec: ModelSpec,
    checkpoint: Checkpoint | None,
    deployment: Deployment,
    config: ModelServerConfig,
    programs: Programs,
) -> StartPrograms | None:
    """Return the source of the programs of a model's steps; None: they are not kept.

    programs: what compiles those that the last start did not leave.
    """
    folder = _folder(config)
    if folder is None or not _is_alone(deployment):
        return None
    program, buckets = deployment.program, deployment.buckets
    key = start_key(
        spec,
        None if checkpoint is None else checkpoint.config,
        deployment.layout,
        program,
        deployment.blueprint.declarations,
        buckets,
    )
    path = file_of(folder, key.model)
    names = program.programs(buckets)
    return StartPrograms(path, key.whole, names, programs, spec.model_id)


def _folder(config: ModelServerConfig) -> Path | None:
    """Return where programs are kept: beside jax's compile cache."""
    place = config.jax_cache_dir
    # Sources of imported modules are not part of the key.
    if not config.keep_programs or not place or "://" in place or config.imports:
        return None
    return Path(place) / _FOLDER


def _is_alone(deployment: Deployment) -> bool:
    """Return True for a whole language model on CPUs of this process.

    Accelerators and several hosts have sets that are compiled ahead, and hosts that send programs.
    What is beside the model's own programs, a draft model or an encoder, may change them.
    """
    here = deployment.layout.platform == "cpu" and jax.process_count() == 1 and not is_proxied()
    plain = deployment.draft is None and deployment.encoder is None and deployment.stage is None
    return here and plain
