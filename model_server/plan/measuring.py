"""Measure the steps of a deployment: every bucket, with a few layers in place of all.

A draft model's forward pass runs in every step of its model, drafting between them. Both lie in
memory together, and their programs run one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.engine.buckets import Bucket
from model_server.engine.column_layout import logit_rows
from model_server.engine.compiling import compiled_in_turn
from model_server.engine.running.draft_program import DraftProgram
from model_server.engine.step_program import StepProgram
from model_server.loading.deployment import Deployment
from model_server.loading.draft_loading import deployed, program_of
from model_server.plan.compiled import (
    Measured,
    measure,
    measure_choice,
    measure_draft_tokens,
    with_choice,
    with_follower,
)
from model_server.plan.depth import (
    Depths,
    depths_of,
    further_layers,
    growth_of,
    shallow,
    uneven_bytes,
    whole,
)
from model_server.plan.model_plan import DraftPlan, DraftTokenPlan
from model_server.plan.slices import Chip
from model_server.plan.speeds import planned_step
from model_server.plan.work import StepWork, Workload

Told = Callable[[Measured], None]


def _own_program(deployment: Deployment) -> StepProgram:
    return deployment.program


@dataclass(frozen=True, slots=True)
class StepMeasures:
    """Measures the programs of one model, whose checkpoint is open."""

    deployment: Deployment  # without a draft model
    checkpoint: Checkpoint | None
    work: Workload
    program: Callable[[Deployment], StepProgram] = _own_program

    def forwards(self, depths: Depths | None, told: Told) -> list[Measured]:
        """Measure the forward pass of every bucket, compiling two at a time.

        depths: None: compile all layers. Raises OutOfMemory.
        """
        found = self._compiled(depths, told)
        if depths is None:
            return found
        few = shallow(self.deployment, self.checkpoint, depths.few)
        growth = growth_of(measure(self.program(few), found[0].bucket), found[0], depths)
        uneven = uneven_bytes(self.deployment, depths)
        deep = [
            whole(each, growth, depths, self.work.flops_ratio(each.bucket, depths.more))
            for each in found
        ]
        return [replace(each, arguments=each.arguments + uneven) for each in deep]

    def with_choices(self, forwards: list[Measured]) -> list[Measured]:
        """Add the choice of tokens to each bucket; buckets with as many rows share its code."""
        program, limits = self.deployment.program, self.deployment.limits
        choices: dict[int, Measured] = {}
        made: list[Measured] = []
        for forward in forwards:
            rows, code = logit_rows(forward.bucket, limits), 0
            if rows not in choices:
                choices[rows] = measure_choice(program, rows)
                code = choices[rows].code
            made.append(replace(with_choice(forward, choices[rows]), code=forward.code + code))
        return made

    def used(self, bucket: Bucket, pages: int) -> int:
        """Return the bytes of a bucket's forward pass with a pool of so many pages."""
        measured = measure(self.program(self.deployment.with_pages(pages)), bucket)
        return measured.arguments + measured.temporaries + measured.outputs + measured.code

    def _compiled(self, depths: Depths | None, told: Told) -> list[Measured]:
        """Measure every bucket as it is compiled, and the layers that it lacks."""
        deployment = self.deployment
        made = shallow(deployment, self.checkpoint, depths.more) if depths else deployment
        part = further_layers(deployment, depths) if depths else None
        # Largest first: it is the most likely not to fit.
        buckets, program = deployment.buckets[::-1], self.program(made)
        found: list[Measured] = []
        for _, each in compiled_in_turn(buckets, lambda each: measure(program, each, part)):
            found.append(each)
            told(each)
        return found[::-1]


class DraftedWorkload(Workload):
    """Counts the work of a model's steps and of its draft model's in them."""

    def __init__(self, deployment: Deployment, draft: Deployment) -> None:
        super().__init__(replace(deployment, draft=None))
        self._draft = Workload(draft, has_logits=False)

    def of(self, bucket: Bucket, context: int) -> StepWork:
        return super().of(bucket, context) + self._draft.of(bucket, context)


def workload_of(deployment: Deployment) -> Workload:
    """Return the work of a deployment's steps, its draft model's included."""
    draft = deployed(deployment)
    return Workload(deployment) if draft is None else DraftedWorkload(deployment, draft)


@dataclass(frozen=True, slots=True)
class DraftMeasures:
    """Measures the programs of a draft model, whose checkpoint is open."""

    model: Deployment
    draft: Deployment

    @property
    def follows(self) -> StepMeasures:
        """Return what measures the forward passes that follow the model's."""
        opened = self.model.recipe.draft
        program: Callable[[Deployment], DraftProgram] = partial(program_of, self.model)
        work = Workload(self.draft, has_logits=False)
        return StepMeasures(self.draft, opened.checkpoint if opened else None, work, program)

    def forwards(self, told: Told, *, is_full: bool) -> list[Measured]:
        """Measure what follows each bucket. Raises OutOfMemory."""
        follows = self.follows
        made = follows.forwards(None if is_full else depths_of(follows.work.anatomy.kinds), told)
        # What a head borrows of the model is among the arguments of both programs, once in memory.
        every = self.draft.blueprint.bytes_on(self.draft.layout)
        borrowed = every - self.draft.weight_bytes
        return [replace(each, arguments=each.arguments - borrowed) for each in made]

    def draft_tokens(self) -> list[Measured]:
        """Measure the programs that draft, with all layers, each for one draft token in a row."""
        program = program_of(self.model, self.draft)
        return [measure_draft_tokens(program, rows) for rows in program.sizes(self.model.buckets)]

    def plan(self, draft_tokens: Sequence[Measured], chip: Chip, context: int) -> DraftPlan:
        work, limits = Workload(self.draft), self.model.limits
        steps = [planned_step(work, chip, each, context).roof for each in draft_tokens]
        return DraftPlan(
            model=self.model.recipe.speculation.drafter or "",
            parameters=sum(math.prod(each.shape) for each in self.draft.own_weights),
            weights=self.draft.weight_bytes,
            kv=(limits.pages + 1) * self.draft.page_bytes(limits.page_size),
            draft_tokens=[
                DraftTokenPlan(rows=each.bucket.decodes, seconds=roof.seconds, bound=roof.bound)
                for each, roof in zip(draft_tokens, steps, strict=True)
            ],
        )


def measures_of(deployment: Deployment) -> DraftMeasures | None:
    """Return what measures a deployment's draft model; None: it has none."""
    draft = deployed(deployment)
    return None if draft is None else DraftMeasures(deployment, draft)


def followed(
    steps: Sequence[Measured], follows: Sequence[Measured], draft_tokens: Sequence[Measured]
) -> list[Measured]:
    """Return the figures of steps with a draft model, whose weights and pages lie beside theirs.

    The memory of draft tokens counts in the steps of as many rows, between which they run.
    """
    by_rows = {each.bucket: each for each in draft_tokens}
    made = [with_follower(*pair) for pair in zip(steps, follows, strict=True)]
    return [_with_draft_tokens(each, by_rows.get(each.bucket)) for each in made]


def _with_draft_tokens(step: Measured, draft_tokens: Measured | None) -> Measured:
    if draft_tokens is None:
        return step
    return replace(
        step,
        temporaries=max(step.temporaries, draft_tokens.temporaries),
        code=step.code + draft_tokens.code,
    )
