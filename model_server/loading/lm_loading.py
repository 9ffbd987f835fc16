"""Loads a language model: plans memory, then builds this process's share.

Nothing is allocated before the plan fits. Every host of a replica runs the same code; they differ
only in who makes the plan.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.disaggregation.kv_transfers import KvTransfers
from model_server.disaggregation.transfer_server import TransferServer
from model_server.disaggregation.transfers import Disaggregation, Transfers
from model_server.engine.compiling import Programs
from model_server.engine.runner import ModelRunner
from model_server.engine.types import EngineLimits
from model_server.kernels.pages import allocate
from model_server.loading.capacity import (
    buckets_of,
    cache_of,
    kernel_of,
    kv_dtype,
    layout_for,
    plan_capacity,
    step_program,
)
from model_server.loading.embed_loading import NeededTensors
from model_server.loading.needs import check_devices, telling_need
from model_server.loading.random_weights import random_weights
from model_server.loading.transfer_setup import make_apart, make_transfers
from model_server.loading.weights import read_weights
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import spans_hosts
from model_server.models.weights.weight import Blueprint
from model_server.programs.finding import find_ready
from sax.errors import MemoryPlanError
from sax.format import human_bytes as human
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)

Report = Callable[[Progress], None]
STEPS = "whole on all hosts"


class Warmed(Protocol):
    """Runner whose buckets can be run before the first step."""

    @property
    def buckets(self) -> int: ...

    def warm(self, bucket: int) -> None: ...

    def close(self) -> None: ...


class LmLoad:
    """One language model load, planned on construction.

    Raises MemoryPlanError or InvalidRequest if no plan fits.
    """

    def __init__(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        config: ModelServerConfig,
        in_use: int,
        transfer: TransferServer,
        limits: EngineLimits | None = None,
    ) -> None:
        """limits: the plan of another host of this replica; None: this host plans."""
        self._spec = spec
        self._recipe = recipe
        self._checkpoint = checkpoint
        self._config = config
        self._transfer = transfer
        self.traffic: KvTransfers | None = None
        check_devices(recipe, checkpoint, config)
        layout = layout_for(recipe)
        self._module = recipe.blueprint(layout, checkpoint)
        with telling_need(recipe, checkpoint, config):
            self.limits, self.planned = plan_capacity(recipe, self._module, layout, config, in_use)
        self.layout = layout.placed()
        self.spans_hosts = spans_hosts(self.layout)
        self.order = STEPS if self.spans_hosts else None
        if limits is not None:
            self._follow(limits)
        # Secondaries receive the programs of the host that planned.
        self._ready = (
            find_ready(spec, config, self._module, self.layout, self.limits)
            if limits is None
            else None
        )
        if self._ready is not None:
            self._shrink(self._ready.limits.pages)
        self._check_kernel()
        self.total = self.planned.total  # bytes on one device
        self.memory = self.total * layout.mesh.size
        _warn_of_plain(spec, self._module)
        logger.info(
            "%s: %s planned per device, %d pages, mesh %s",
            spec.model_id,
            human(self.planned.total),
            self.planned.pages,
            dict(self.layout.mesh.shape),
        )

    def build(self, programs: Programs, report: Report) -> ModelRunner:
        """Read weights, allocate pages and compile every bucket; nothing has run yet."""
        leaves = self._weights(report)
        self.traffic = make_transfers(
            self._transfer, self._config, self._recipe, self.limits, self.layout
        )
        limits, cache = self.limits, cache_of(self._recipe, self.layout)
        where = self.layout.pages(cache.axis)
        kernel, dtype = kernel_of(self._recipe, self.layout), kv_dtype(self._recipe, self.layout)
        pages = allocate(cache, limits.pages, limits.page_size, dtype, where, kernel.shapes)
        runner = ModelRunner(
            self._module,
            leaves,
            pages,
            limits,
            buckets_of(limits),
            kernel,
            self.layout.row_split(),
            self.traffic,
        )
        try:
            runner.compile(report, self._ready.over(programs) if self._ready else programs)
            if self._ready is not None:
                self._ready.tell()
        except BaseException:
            runner.close()
            raise
        return runner

    def apart(self, transfers: Transfers) -> Disaggregation:
        """Return what disaggregated prefill needs; `transfers` covers every host."""
        return make_apart(transfers, self._spec, self._recipe, self.limits, self.layout)

    def _check_kernel(self) -> None:
        """Check before weights are read that the kernel supports the largest step.

        Skipped on CPU, whose kernel supports any. Raises MemoryPlanError, InvalidRequest.
        """
        if self.layout.platform != "cpu":
            program = step_program(self._recipe, self._module, self.limits, self.layout)
            program.lower(buckets_of(self.limits)[-1])

    def _follow(self, limits: EngineLimits) -> None:
        """Adopt the primary's plan, if it fits on this host."""
        if limits.pages > self.limits.pages:
            raise MemoryPlanError(
                f"this host has memory for {self.limits.pages} KV pages, but the primary planned "
                f"{limits.pages}: give every host the same memory, or lower --kv_cache_bytes"
            )
        self.limits = limits

    def _shrink(self, pages: int) -> None:
        """Adopt the page count of precompiled programs, which is no more than planned."""
        self.limits = msgspec.structs.replace(self.limits, pages=pages)
        self.planned = self.planned.with_pages(pages)

    def _weights(self, report: Report) -> list[Any]:
        declared = self._module.declarations
        if self._checkpoint is None:
            seed = zlib.crc32(self._spec.model_id.encode())
            return random_weights(declared, seed, report, self.layout)
        needed: Any = NeededTensors(self._checkpoint, self._recipe.unused)
        return read_weights(declared, needed, report, self.layout)


def run_all(runner: Warmed, report: Report) -> None:
    """Run every bucket once, so that no request pays for a first run."""
    try:
        for index in range(runner.buckets):
            report(Progress("running bucket", index, runner.buckets))
            runner.warm(index)
    except BaseException:
        runner.close()
        raise


def _warn_of_plain(spec: ModelSpec, module: Blueprint) -> None:
    left = [declared.path for declared in module.declarations if declared.left_plain]
    if left:
        logger.warning(
            "%s: QUANTIZE does not fit shape or checkpoint of %d matrices, which stay plain: %s%s",
            spec.model_id,
            len(left),
            ", ".join(left[:3]),
            ", ..." if len(left) > 3 else "",
        )
