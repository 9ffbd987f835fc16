"""State that loads of all kinds of model share: checkpoints, and the memory each model holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import jax

from model_server.config import ModelServerConfig
from model_server.loading.checkpoint_opener import CheckpointOpener
from model_server.loading.compile_watch import CompileWatch
from model_server.loading.device_memory import device_limit, free_memory
from model_server.loading.loaded_model import HeldMemory
from model_server.loading.memory_plan import FreeMemory
from model_server.models.weights.sharding import Layout
from model_server.sharing.freeing import give_back_code, give_back_unused
from sax.types import ModelSpec

logger = logging.getLogger(__name__)

K = TypeVar("K")


class _Live(NamedTuple):
    """A model in memory."""

    held: HeldMemory
    model_id: str
    memory: int  # bytes per device


class LoadContext:
    """Accounts for the memory of this process's devices. One load at a time calls it."""

    def __init__(self, config: ModelServerConfig, watch: CompileWatch) -> None:
        self.config = config
        self.watch = watch
        self.opener = CheckpointOpener(config.checkpoint_roots, config.open_seconds)
        self._live: list[_Live] = []
        self._kinds: dict[type, Any] = {}

    def kind(self, kind: Callable[[LoadContext], K]) -> K:
        """Return the process's instance of a kind of model."""
        assert isinstance(kind, type)
        return self._kinds.get(kind) or self.use(kind(self))

    def use(self, kind: K) -> K:
        """Let this be the process's instance of its kind."""
        self._kinds[type(kind)] = kind
        return kind

    @contextmanager
    def loading(self, spec: ModelSpec) -> Iterator[None]:
        """Log what a load compiles, and give back the memory that it used in passing."""
        with self.watch.loading() as compiles:
            yield
        logger.info("%s: while it loaded, XLA compiled %s", spec.model_id, compiles)
        if len(self._live) == 1:  # nobody is served meanwhile
            give_back_unused()
            give_back_code()

    def keep(self, spec: ModelSpec, held: HeldMemory, memory: int) -> None:
        """Count a model's bytes per device until it is closed."""
        self._live.append(_Live(held, spec.model_id, memory))

    def holders(self) -> dict[str, int]:
        """Return the models in memory, with the bytes that each has planned on a device."""
        self._live = [live for live in self._live if not live.held.closed]
        holders: dict[str, int] = {}
        for live in self._live:
            holders[live.model_id] = holders.get(live.model_id, 0) + live.memory
        return holders

    def free_on(self, layout: Layout) -> FreeMemory:
        """Return what is left on each device of a layout."""
        holders = self.holders()
        if layout.mesh.size > 1:
            return free_memory(layout, self.config, holders)
        limit = device_limit(jax.local_devices(), self.config)
        return FreeMemory(limit, sum(holders.values()), holders)
