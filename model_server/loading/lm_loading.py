"""Loads a language model: plans memory, then builds this process's share.

Nothing is allocated before the plan fits. Every host of a replica runs the same code; they differ
only in who makes the plan.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import with_whole_names, without, without_prefixes
from model_server.config import ModelServerConfig
from model_server.disaggregation.disaggregation import Disaggregation, Transfers
from model_server.disaggregation.island_moves import IslandPort
from model_server.disaggregation.kv_transfers import KvTransfers, TransferServer
from model_server.disaggregation.movable_pages import MovablePages
from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE, CompiledAhead, Programs
from model_server.engine.limits import EngineLimits
from model_server.engine.running.adapters import AdapterFiles, Adapters
from model_server.engine.running.draft_model import DraftModel
from model_server.engine.running.encoder import Encoder
from model_server.engine.running.new_weights import NewWeights
from model_server.engine.running.ops import Runner
from model_server.engine.running.runner import ModelRunner
from model_server.engine.running.runner_part import RunnerPart
from model_server.engine.step_times import StepTimes
from model_server.islands import island_devices
from model_server.kernels.cpu import nodes
from model_server.kernels.cpu.served import has_native
from model_server.loading.adapters import adapters_of
from model_server.loading.beside_devices.weights_there import read_there
from model_server.loading.checkpoint_opener import CheckpointOpener
from model_server.loading.deployment import Deployment, plan_pages
from model_server.loading.device_memory import free_memory, layout_for
from model_server.loading.draft_loading import (
    Weights,
    check_context,
    deployed,
    program_of,
    read_draft,
    told_draft,
)
from model_server.loading.media.encoder_plan import told_media
from model_server.loading.media.encoder_weights import encoder_weights
from model_server.loading.needs import check_devices, telling_need
from model_server.loading.new_weights import HostWeights
from model_server.loading.passes.beside import Beside, beside_of
from model_server.loading.placed_model import PlacedModel, place_model
from model_server.loading.random_weights import random_weights
from model_server.loading.start_loading import start_programs, start_weights
from model_server.loading.transfer_setup import make_disaggregation, make_transfers
from model_server.loading.weights import mismatches, read_weights
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout, spans_hosts
from model_server.models.weights.weight import Blueprint
from model_server.programs.finding import find_passes, find_ready
from model_server.programs.ready_programs import ReadyPrograms
from model_server.programs.start_programs import StartPrograms
from sax.errors import CheckpointError
from sax.format import human_bytes as human
from sax.types import ModelSpec, Progress

logger = logging.getLogger(__name__)

Report = Callable[[Progress], None]
STEPS = "whole on all hosts"
_MEASURED_RUNS = 2
_LONG_RUN_S = 0.1  # long enough to be measured once
_SHORT_RUN_S = 0.03  # short enough to be measured in several starts
_FASTER = 0.8  # of the seconds before: the machine was busy with something else then


class LanguageLoad:
    """A planned load of a language model; subclasses set `deployment` and build."""

    deployment: Deployment
    spans_hosts = False
    order: str | None = None  # of programs over hosts; None: no host waits for another
    fixed = "it is in stages (NUM_STAGES)"  # why its weights cannot change; "": they can
    others: Sequence[Runner] = ()  # lanes beside the first, once built

    def __init__(
        self, spec: ModelSpec, checkpoint: Checkpoint | None, config: ModelServerConfig
    ) -> None:
        self._spec = spec
        self._checkpoint = checkpoint
        self._config = config
        self._seed = zlib.crc32(spec.model_id.encode())  # of random weights

    @property
    def measured(self) -> Deployment:
        """The deployment whose buckets the runner has."""
        return self.deployment


class LmLoad(LanguageLoad):
    """One language model load, planned on construction.

    Raises MemoryPlanError or InvalidRequest if no plan fits.
    """

    def __init__(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        config: ModelServerConfig,
        holders: Mapping[str, int],
        transfer: TransferServer,
        limits: EngineLimits | None = None,
        tasks: frozenset[str] = frozenset(),
        among: Sequence[Any] | None = None,
    ) -> None:
        """limits: the plan of another host of this replica; None: this host plans.

        holders: the models in memory and the bytes that each has planned on a device.
        tasks: those beside generating. among: devices of one island; None: the first's.
        """
        super().__init__(spec, checkpoint, config)
        self._transfer = transfer
        self.traffic: KvTransfers | None = None
        self.start: StartPrograms | None = None  # where the next start finds the programs
        self.port: IslandPort | None = None  # to set before `build`, for islands that move pages
        check_devices(recipe, checkpoint, config)
        layout = layout_for(recipe).placed(among or island_devices())
        placed = place_model(recipe, checkpoint, layout)
        self.beside = beside_of(placed, checkpoint, tasks)
        if self.beside is not None:
            placed = self._with_passes(self.beside)
        with telling_need(recipe, checkpoint, config):
            planned = plan_pages(placed, config, free_memory(layout, config, holders))
        # Secondaries receive the programs of the host that planned.
        self._ready: ReadyPrograms | None = None
        self.deployment = planned.following(limits) if limits else self._with_ready(planned)
        check_context(self.deployment)
        self.spans_hosts = spans_hosts(layout)
        self.order = STEPS if self.spans_hosts else None
        self._check_kernel()
        _warn_of_plain(spec, planned.blueprint)
        logger.info(
            "%s: %s planned per device, %d pages, %d slots of %d tokens, mesh %s, %s",
            spec.model_id,
            human(self.deployment.memory.total),
            self.deployment.limits.pages,
            self.deployment.limits.slots,
            self.deployment.limits.max_context,
            dict(layout.mesh.shape),
            told_draft_tokens(self.deployment.limits)
            + told_draft(self.deployment)
            + (f",{told}" if (told := self._told_media) else ""),
        )

    def build(self, programs: Programs, report: Report) -> ModelRunner:
        """Read weights, allocate pages and compile every bucket; nothing has run yet."""
        if self.deployment.layout.platform != "cpu" or self.spans_hosts or self._ready is not None:
            return self._build(programs, report)
        # An accelerator's compiler may measure on the device, whose memory weights would take.
        self.start = start_programs(
            self._spec, self._checkpoint, self.deployment, self._config, programs
        )
        lowers = self.deployment.program.programs(self.deployment.buckets)
        with closing(CompiledAhead(lowers, self.start or programs)) as ahead:
            runner = self._build(ahead, report)
        if self.start is not None and self.start.seconds:
            runner.warm_idly()
        return runner

    def _build(self, programs: Programs, report: Report) -> ModelRunner:
        deployment = self.deployment
        weights = partial(read_leaves, seed=self._seed, report=report, spec=self._spec)
        leaves = self._kept(partial(weights, deployment, self._checkpoint))
        adapters = adapters_of(deployment, self._config, self._spec)
        how, buckets = (self._checkpoint, self._seed, report), deployment.buckets
        parts = read_parts(deployment, *how, weights, leaves, adapters, buckets)
        if self.port is None:
            self.traffic = make_transfers(self._transfer, self._config, deployment)
        if (traffic := self.port or self.traffic) is not None:
            draft = next((part for part in parts if isinstance(part, DraftModel)), None)
            parts.append(MovablePages(traffic, draft))
        opener = CheckpointOpener(self._config.checkpoint_roots, self._config.open_seconds)
        parts.append(NewWeights(HostWeights(deployment, opener), deployment.allocate_pages))
        pages = deployment.allocate_pages()
        runner = ModelRunner(deployment.program, leaves, pages, buckets, parts)
        self.leaves = runner.leaves
        if has_native(deployment.kernel):
            nodes.divide_threads()
            nodes.place(leaves, jax.tree.leaves(pages))
        compile_or_close(runner, report, self._ready.over(programs) if self._ready else programs)
        if self._ready is not None:
            self._ready.tell("steps")
        return runner

    def _kept(self, read: Callable[[], list[jax.Array]]) -> list[jax.Array]:
        """Return the weights of the last start, or those that are read, kept for the next one."""
        plan, start = self.deployment, self.start
        kept = start and start_weights(self._spec, self._checkpoint, plan, start)
        if kept is None:
            return read()
        leaves = kept.leaves(plan.layout, plan.own_weights, read)
        kept.keep(leaves)
        return leaves

    @property
    def fixed(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Why its weights cannot change: others hold them, or what was computed with them."""
        draft, traffic = self.deployment.recipe.draft, self.port or self.traffic
        reasons = {
            "a draft head computes with them (SPECULATION)": draft is not None and draft.is_head,
            "an encoder of images or sounds belongs to them": self.deployment.encoder is not None,
            "TASKS beside generate compute with them": self.beside is not None,
            "other servers compute its prompts (--prefill_servers)": traffic is not None,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def disaggregation(self, runner: Runner, transfers: Transfers) -> Disaggregation:
        """Return what disaggregated prefill needs; both arguments cover every host."""
        return make_disaggregation(runner, transfers, self._spec, self.deployment)

    def _with_ready(self, planned: Deployment) -> Deployment:
        """Adopt the page count of precompiled programs, if any: no more than planned."""
        self._ready = find_ready(
            self._spec,
            self._config,
            planned.blueprint,
            planned.layout,
            planned.limits,
            planned.draft.blueprint if planned.draft else None,
            planned.encoder,
        )
        return planned if self._ready is None else planned.with_pages(self._ready.limits.pages)

    def _with_passes(self, beside: Beside) -> PlacedModel:
        """Compile the passes, or read what was compiled ahead."""
        placed = beside.placed
        ready = find_passes(
            self._spec, self._config, placed.blueprint, placed.layout, placed.encoder
        )
        if ready is None:
            return beside.compile(COMPILED_HERE)
        placed = beside.compile(ready.over(COMPILED_HERE))
        ready.tell("passes")
        return placed

    def _check_kernel(self) -> None:
        """Check before weights are read that the kernel supports the largest step.

        Skipped on CPU, whose kernel supports any. Raises MemoryPlanError, InvalidRequest.
        """
        if self.deployment.layout.platform == "cpu":
            return
        largest = self.deployment.buckets[-1]
        self.deployment.program.lower(largest)
        if draft := deployed(self.deployment):
            program_of(self.deployment, draft).lower(largest)

    @property
    def _told_media(self) -> str:
        return told_media(self.deployment.recipe, self.deployment.encoder_bytes)


def read_leaves(
    plan: Deployment,
    checkpoint: Checkpoint | None,
    seed: int,
    report: Report,
    spec: ModelSpec | None = None,
) -> list[jax.Array]:
    """Read a model's or a stage's weights, or draw them with the seed. Raises CheckpointError.

    spec: the model, whose weights the workers of its island read if they can.
    """
    declared, layout = plan.own_weights, plan.layout
    if checkpoint is None:
        return random_weights(declared, seed, report, layout)
    own = own_tensors(plan.recipe, plan.blueprint, layout, checkpoint)
    there = read_there(spec, plan, own, report) if spec else None
    return read_weights(declared, own, report, layout) if there is None else there


def own_tensors(
    part: Recipe, module: Blueprint, layout: Layout, checkpoint: Checkpoint
) -> Checkpoint:
    """Return the checkpoint without the tensors of other stages. Raises CheckpointError.

    Every host of a pipeline checks the whole checkpoint, so that all report the same error.
    """
    needed = without_prefixes(checkpoint, part.unused)
    if part.stage is None:
        return needed
    whole = replace(part, stage=None).blueprint(layout, checkpoint)
    if found := next(mismatches(whole.declarations, needed), None):
        raise CheckpointError(found)
    everything = set(_names(whole))
    others = everything.difference(_names(module))
    return without(with_whole_names(needed, everything), others)


def _names(module: Blueprint) -> Iterator[str]:
    return (name for weight in module.declarations for name in weight.source.names)


class Compilable(Protocol):
    """A runner before it serves."""

    def compile(self, report: Report, programs: Programs) -> None: ...
    def close(self) -> None: ...


def compile_or_close(runner: Compilable, report: Report, programs: Programs) -> None:
    """Compile every program of a runner, which is closed if that fails."""
    try:
        runner.compile(report, programs)
    except BaseException:
        runner.close()
        raise


def read_parts(
    plan: Deployment,
    checkpoint: Checkpoint | None,
    seed: int,
    report: Report,
    weights: Weights,
    held: Sequence[jax.Array],
    adapters: AdapterFiles | None,
    buckets: Sequence[Bucket],
) -> list[RunnerPart[Any]]:
    """Return the parts that hosts warm in this order; a draft model, if there is one, comes last.

    weights: reads those of a deployment. held: the leaves of the model. adapters: of a model with
    room for them. buckets: of the steps. Raises CheckpointError.
    """
    parts: list[RunnerPart[Any]] = []
    if adapters is not None:
        parts.append(Adapters(adapters))
    if (encoder := plan.program.encoder) is not None:
        media, layout = plan.recipe.media, plan.layout
        read = encoder_weights(plan.encoder, layout, checkpoint, seed, report, media)
        parts.append(Encoder(encoder, read))
    if (draft := read_draft(plan, weights, held, buckets)) is not None:
        parts.append(draft)
    return parts


def run_all(runner: Runner, report: Report) -> None:
    """Run every bucket once, so that no request pays for a first run."""
    try:
        for index in range(runner.warmups):
            report(Progress("running bucket", index, runner.warmups))
            runner.warm(index)
    except BaseException:
        runner.close()
        raise


def measure(
    runner: Runner, deployment: Deployment, name: str, start: StartPrograms | None = None
) -> StepTimes | None:
    """Measure every bucket, on all hosts of a replica together.

    start: keeps the times. What earlier starts measured holds if it is less, since the machine is
    busy with something else at times; once enough have, nothing is measured. Returns None for a
    runner without buckets of its own.
    """
    buckets = deployment.buckets
    before = () if start is None else start.seconds
    try:
        if start is not None and start.is_measured:
            seconds = before
        else:
            seconds = _measured(runner, len(buckets), before)
        if start is not None:
            start.keep(seconds)
    except BaseException:
        runner.close()
        raise
    told = (f"{each} {1e3 * took:.1f} ms" for each, took in zip(buckets, seconds, strict=False))
    logger.info("%s: steps take %s", name, ", ".join(told))
    block, skips = deployment.limits.prefill_block, deployment.program.skips
    return StepTimes.measured(buckets, seconds, block, skips=skips)


def _measured(runner: Runner, buckets: int, before: Sequence[float]) -> tuple[float, ...]:
    """Return the seconds of each bucket, or those before if they are less.

    After earlier starts only short ones are measured, unless one of them shows that the machine was
    busy then.
    """
    count = min(runner.warmups, buckets)
    if len(before) != count:
        return tuple(_seconds(runner, index, _MEASURED_RUNS) for index in range(count))
    short = [each for each in range(count) if before[each] <= max(_SHORT_RUN_S, min(before))]
    now = {index: _seconds(runner, index, 1) for index in short}
    if any(took < _FASTER * before[index] for index, took in now.items()):
        now |= {index: _seconds(runner, index, 1) for index in range(count) if index not in now}
    return tuple(min(now.get(index, took), took) for index, took in enumerate(before))


def told_draft_tokens(limits: EngineLimits) -> str:
    """Describe what is drafted, for the log."""
    if not limits.draft_tokens:
        return "no draft tokens"
    most, rows = limits.draft_tokens, limits.decodes
    return f"up to {most} draft tokens of a sequence in steps of {rows} rows"


def _seconds(runner: Runner, index: int, most: int) -> float:
    """Return the shortest of at most so many runs: longer ones were disturbed."""
    runs: list[float] = []
    for _ in range(most):
        began_s = time.perf_counter()
        runner.warm(index)
        runs.append(time.perf_counter() - began_s)
        if runs[-1] > _LONG_RUN_S:
            break
    return min(runs)


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
