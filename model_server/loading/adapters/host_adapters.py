"""One host's part of a model's adapters: read from their files in any thread, written in order.

An adapter is read first, which takes as long as its files do; then the runner writes it into its
place between two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property

import jax

from model_server.checkpoints.hub.fetching import local_copy
from model_server.checkpoints.huggingface.peft import open_adapter
from model_server.checkpoints.roots import CheckpointRoots
from model_server.config import ModelServerConfig
from model_server.loading.adapters.factors import check_adapter, read_factors
from model_server.loading.deployment import Deployment
from model_server.models.weights.weight import Blueprint


class HostAdapters:
    """The adapters of one model with room for them, on this host."""

    def __init__(self, deployment: Deployment, roots: CheckpointRoots) -> None:
        self._deployment = deployment
        self._roots = roots
        self._read: dict[str, Sequence[jax.Array]] = {}  # and not written, by key
        self._reading: set[str] = set()
        self._guard = threading.Lock()

    def read(self, key: str, path: str) -> None:
        """Read an adapter and keep it under the key until it is written or forgotten.

        Raises CheckpointError.
        """
        with self._guard:
            self._reading.add(key)
        made = self._factors(path)
        with self._guard:
            if key in self._reading:
                self._read[key] = made

    def forget(self, key: str) -> None:
        with self._guard:
            self._reading.discard(key)
            self._read.pop(key, None)

    def take(self, key: str) -> Sequence[jax.Array]:
        """Return the factors of an adapter that was read, and forget it."""
        with self._guard:
            self._reading.discard(key)
            return self._read.pop(key)

    def _factors(self, path: str) -> list[jax.Array]:
        self._roots.check(path)
        with closing(open_adapter(local_copy(path))) as adapter:
            check_adapter(adapter, self._whole)
            deployment = self._deployment
            return read_factors(adapter, deployment.blueprint, deployment.layout)

    @cached_property
    def _whole(self) -> Blueprint:
        """The model with the layers of all stages."""
        recipe = replace(self._deployment.recipe, stage=None, quantize=None)
        return recipe.blueprint(self._deployment.layout)


def adapters_of(deployment: Deployment, config: ModelServerConfig) -> HostAdapters | None:
    """Return the adapters of a model; None if it has no room for any."""
    if deployment.recipe.adapters is None:
        return None
    return HostAdapters(deployment, CheckpointRoots(config.checkpoint_roots))
