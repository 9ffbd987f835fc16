"""Plan a model: open it, choose a slice, compile every bucket, report the result.

Raises for bad input. A model that does not fit yields a plan too, with the changes that would help.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE
from model_server.engine.paging.window_pages import window_page_count
from model_server.loading.asked_limits import AskedLimits
from model_server.loading.chosen_tasks import tasks_of
from model_server.loading.deployment import Deployment, plan_pages
from model_server.loading.draft_loading import check_context
from model_server.loading.media.encoder_plan import told_media
from model_server.loading.passes.beside import beside_of
from model_server.loading.placed_model import PlacedModel, place_model
from model_server.models.media.media_recipe import text_only
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout
from model_server.plan.advice import attempt, changes, fitting_slices
from model_server.plan.compiled import Measured, OutOfMemory
from model_server.plan.depth import Depths, depths_of
from model_server.plan.measuring import StepMeasures, Told, followed, measures_of, workload_of
from model_server.plan.model import PlannedModel, open_with_draft
from model_server.plan.model_plan import DraftPlan, Memory, ModelPlan, Slice
from model_server.plan.slices import LENT
from model_server.plan.speeds import Speeds, notes_of
from model_server.plan.topology import Topology, topology_of
from model_server.plan.work import Workload
from sax.errors import MemoryPlanError
from sax.format import human_bytes as human

AUTO = "auto"
_SPARE = 0.98  # margin on pages extrapolated from two points
_USUAL_CONTEXT = 2048  # tokens: prompt and answer of a chat


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    model: str
    topology: str  # or auto
    config: ModelServerConfig
    overrides: Mapping[str, str]
    path: str | None = None  # the model path of a checkpoint; None: as its config.json says
    chips: tuple[str, ...] = ("v5e",)  # whose slices auto tries
    context: int | None = None  # cached tokens per sequence, for bytes and speeds
    is_full: bool = False  # compile all layers


@dataclass(frozen=True, slots=True)
class BucketCompiled:
    """Progress: one more bucket is compiled."""

    bucket: Bucket
    topology: str
    seconds: float
    number: int
    of: int


OnCompiled = Callable[[BucketCompiled], None]


def make_plan(request: PlanRequest, report: OnCompiled) -> ModelPlan:
    """Make a plan. Raises InvalidRequest, ModelPathNotFound, CheckpointError, Unavailable."""
    started = time.monotonic()
    with open_with_draft(request.model, request.overrides, request.path) as model:
        planner = _Planner(request, model, model.recipe(request.overrides), report)
        if request.topology == AUTO:
            made = planner.on_smallest()
        else:
            made = planner.on(topology_of(request.topology))
    return replace(made, planning_seconds=time.monotonic() - started)


def usual_context(deployment: Deployment) -> int:
    """Return the default context for speeds: each slot's share of the pages, at most a chat."""
    limits = deployment.limits
    fair = limits.pages * limits.page_size // limits.slots
    return max(1, min(_USUAL_CONTEXT, limits.max_context, fair))


@dataclass(frozen=True, slots=True)
class _Planner:
    """A request and its open model."""

    request: PlanRequest
    model: PlannedModel
    recipe: Recipe
    report: OnCompiled

    def on_smallest(self) -> ModelPlan:
        """Plan on the first slice that fits by arithmetic and by the compiler."""
        config, chips = self.request.config, list(self.request.chips)
        refused = None
        for topology, _ in fitting_slices(self.model, self.recipe, config, chips):
            made = self.on(topology)
            if made.fits:
                return made
            refused = made
        if refused is not None:
            return refused
        return self._too_small(topology_of(f"{chips[-1]}:{LENT[chips[-1]][-1]}"))

    def on(self, topology: Topology) -> ModelPlan:
        layout, memory = topology.layout(self.recipe), topology.memory(self.request.config)
        try:
            deployment = plan_pages(self._placed(layout), self.request.config, memory)
            check_context(deployment)
        except MemoryPlanError as exc:
            if exc.need is None:  # a flag is wrong: no slice helps
                raise
            return self._too_small(topology)
        return _Candidate(self, topology, deployment, workload_of(deployment)).plan()

    def _placed(self, layout: Layout) -> PlacedModel:
        """Place the model, with the memory of the passes beside its steps."""
        checkpoint = self.model.checkpoint
        placed = place_model(self.recipe, checkpoint, layout)
        beside = beside_of(placed, checkpoint, tasks_of(self.recipe, checkpoint))
        return placed if beside is None else beside.compile(COMPILED_HERE, largest=True)

    def _too_small(self, topology: Topology) -> ModelPlan:
        """Report that a slice is too small by arithmetic."""
        config, recipe = self.request.config, self.recipe
        tried = attempt(self.model, recipe, topology, config)
        context = AskedLimits(tried.placed, config).least_context
        return self.filled(
            topology,
            tried.placed,
            slots=recipe.slots or config.slots,
            max_context=context,
            context=context,
            fits=False,
            problem=(
                f"{self.model.title} does not fit {topology.name}: weights {human(tried.weights)} "
                f"+ workspace and one sequence of {context:,} tokens "
                f"{human(tried.least - tried.weights)} = {human(tried.least)} per device; "
                f"{human(tried.limit)} is available"
            ),
            advice=self.changes(topology),
        )

    def changes(self, topology: Topology) -> list[str]:
        return changes(self.model, self.request.overrides, topology, self.request.config)

    def filled(self, topology: Topology, placed: PlacedModel, **outcome: Any) -> ModelPlan:
        return ModelPlan(
            model=self.model.title,
            path=self.model.path,
            parameters=sum(
                math.prod(each.shape)
                for part in (placed.blueprint, placed.encoder)
                for each in (part.declarations if part else ())
            ),
            slice=_slice(topology, placed),
            **outcome,
        )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A model deployed on a slice, to be compiled and judged."""

    planner: _Planner
    topology: Topology
    deployment: Deployment
    work: Workload

    def plan(self) -> ModelPlan:
        request = self.planner.request
        depths = None if request.is_full else depths_of(self.work.anatomy.kinds)
        wanted = request.context or usual_context(self.deployment)
        context = min(wanted, self.deployment.limits.max_context)
        try:
            measured, draft_tokens = self._measure(depths)
        except OutOfMemory as exc:
            return self._filled(context, fits=False, **self._refusal(exc))
        memory = memory_of(self.deployment, self._limit, measured)
        speeds = Speeds(self.work, self.topology, measured)
        made = self._filled(
            context,
            fits=True,
            notes=self._notes(depths),
            memory=memory,
            draft=self._draft(draft_tokens, context),
            buckets=speeds.buckets(context),
            decoding=list(speeds.decoding(context)),
            first_token=list(speeds.first_tokens()),
        )
        if memory.used <= memory.limit:
            return made
        return replace(made, fits=False, **self._shortage(memory))

    def _draft(self, draft_tokens: list[Measured], context: int) -> DraftPlan | None:
        draft = measures_of(self.deployment)
        return draft.plan(draft_tokens, self.topology.chip, context) if draft else None

    def _measure(self, depths: Depths | None) -> tuple[list[Measured], list[Measured]]:
        """Measure the steps, its draft model's part included, and its draft tokens."""
        own = self._own
        steps = own.with_choices(own.forwards(depths, self._teller()))
        if (draft := measures_of(self.deployment)) is None:
            return steps, []
        is_full = self.planner.request.is_full
        follows = draft.forwards(self._teller(), is_full=is_full)
        draft_tokens = draft.draft_tokens()
        return followed(steps, follows, draft_tokens), draft_tokens

    @property
    def _own(self) -> StepMeasures:
        """Return what measures the model without its draft model."""
        own = replace(self.deployment, draft=None)
        return StepMeasures(own, self.planner.model.checkpoint, self.work)

    def _teller(self) -> Told:
        """Return what reports each compiled bucket."""
        numbers, buckets = itertools.count(1), self.deployment.buckets

        def told(made: Measured) -> None:
            self.planner.report(
                BucketCompiled(
                    made.bucket, self.topology.name, made.seconds, next(numbers), len(buckets)
                )
            )

        return told

    def _shortage(self, memory: Memory) -> dict[str, Any]:
        """Explain that the programs leave no memory for the planned pages."""
        return {
            "problem": (
                f"{self.planner.model.title} does not fit {self.topology.name} as planned: "
                f"weights, {memory.kv_pages} KV pages and programs take {human(memory.used)} per "
                f"device, {human(memory.temporaries)} of it temporaries; {human(memory.limit)} is "
                "available"
            ),
            "advice": self._advice(memory.kv_pages_free),
        }

    def _refusal(self, exc: OutOfMemory) -> dict[str, Any]:
        """Explain that the compiler ran out of memory, and with how many pages it would not."""
        try:
            pages = self._pages_by_line(exc)
        except OutOfMemory:
            pages = 0
        planned = self.deployment.memory
        return {
            "problem": (
                f"{self.planner.model.title} does not fit {self.topology.name}: the compiler needs "
                f"{human(exc.used)} per device for {exc.bucket} with {planned.pages} KV pages "
                f"({human(planned.kv)}); {human(exc.available)} is available"
            ),
            "advice": self._advice(pages),
        }

    def _pages_by_line(self, exc: OutOfMemory) -> int:
        """Extrapolate the pages that fit from a program with this pool and the smallest."""
        least, planned = self.deployment.limits.pages_per_sequence, self.deployment.memory.pages
        used = self._own.used(exc.bucket, least)
        slope = (exc.used - used) / max(1, planned - least)
        if draft := self.deployment.draft:  # its pages lie beside those of the program
            page = draft.page_bytes(self.deployment.limits.page_size)
            used, slope = used + draft.weight_bytes + (least + 1) * page, slope + page
        return least + math.floor((exc.available - used) / slope) if slope > 0 else 0

    def _advice(self, pages: int) -> list[str]:
        """Name a smaller pool that fits if there is one, else other changes."""
        limits, pages = self.deployment.limits, int(pages * _SPARE)
        if pages < limits.pages_per_sequence:
            return self.planner.changes(self.topology)
        taken = self.deployment.memory.of.pool(pages)
        return [
            f"--kv_cache_bytes {taken}: {pages * limits.page_size:,} KV tokens "
            f"instead of {limits.pages * limits.page_size:,}"
        ]

    def _notes(self, depths: Depths | None) -> list[str]:
        notes = notes_of(self.work, self.topology)
        media = self.deployment.recipe.media
        if media and self.deployment.limits.media is not None:
            told = told_media(self.deployment.recipe, self.deployment.encoder_bytes)
            notes.append(f"with{told}; steps are those of text ({text_only(media)} plans without)")
        if depths is not None:
            notes.append(
                f"compiled with {depths}; the cost of those in the middle is added for each of "
                "the others (--full compiles them all)"
            )
        return notes

    @property
    def _limit(self) -> int:
        return self.topology.memory(self.planner.request.config).limit

    def _filled(self, context: int, **outcome: Any) -> ModelPlan:
        limits = self.deployment.limits
        return self.planner.filled(
            self.topology,
            self.deployment,
            slots=limits.slots,
            max_context=limits.max_context,
            context=context,
            **outcome,
        )


def memory_of(deployment: Deployment, limit: int, measured: Sequence[Measured]) -> Memory:
    of = deployment.memory.of
    code = sum(each.code for each in measured)
    most = max(measured, key=lambda each: each.arguments + each.temporaries + each.outputs)
    temporaries = most.temporaries + deployment.beside + deployment.media_bytes
    arguments = most.arguments + deployment.encoder_bytes
    step = arguments + temporaries + most.outputs
    without_pages = step - deployment.memory.kv + code
    fitting = max(0, of.fitting(limit - without_pages))
    return Memory(
        limit=limit,
        weights=deployment.weight_bytes,
        arguments=arguments,
        temporaries=temporaries,
        outputs=most.outputs,
        code=code,
        kv=deployment.memory.kv,
        kv_pages=deployment.memory.pages,
        kv_near_pages=window_page_count(deployment.limits),
        kv_pages_free=fitting,
        kv_free=of.pool(fitting),
        page_size=deployment.limits.page_size,
    )


def _slice(topology: Topology, placed: PlacedModel) -> Slice:
    return Slice(
        topology=topology.name,
        chip=topology.chip.name,
        hosts=topology.hosts,
        chips=topology.chips,
        chips_per_host=topology.chips_per_host,
        devices=len(topology.devices),
        hbm_per_chip=topology.chip.hbm,
        mesh=dict(placed.layout.mesh.shape),
    )
