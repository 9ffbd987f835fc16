"""Gives a Pax checkpoint, which says nothing but its sizes, the config.json of its Saxml class."""

from __future__ import annotations

from collections.abc import Mapping

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of
from model_server.checkpoints.orbax.pax.dialect import PRAXIS_ONLY, SAXML_SIZES
from model_server.models.registry import full_config


def says_only_sizes(checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint has a class's sizes in place of a config.json."""
    return SAXML_SIZES in checkpoint.config


def needs_class(checkpoint: Checkpoint) -> bool:
    """Tell whether only a class says what its config.json is."""
    return says_only_sizes(checkpoint) and checkpoint.config.get("model_type") not in PRAXIS_ONLY


def with_full_config(checkpoint: Checkpoint, path: str, overrides: Mapping[str, str]) -> Checkpoint:
    """Return the checkpoint with a config.json that says everything.

    path, overrides: of the publish. Raises CheckpointError, InvalidRequest.
    """
    if not says_only_sizes(checkpoint):
        return checkpoint
    config = dict(full_config(path, checkpoint.config, overrides))
    return view_of(checkpoint, {name: name for name in checkpoint.names()}, config)
