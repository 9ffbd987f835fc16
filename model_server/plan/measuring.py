"""Measure the steps of a deployment: every bucket, with a few layers in place of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.engine.buckets import Bucket
from model_server.engine.column_layout import logit_rows
from model_server.engine.compiling import compiled_in_turn
from model_server.engine.step_program import StepProgram
from model_server.loading.deployment import Deployment
from model_server.plan.compiled import Measured, measure, measure_choice, with_choice
from model_server.plan.depth import Depths, further_layers, growth_of, shallow, uneven_bytes, whole
from model_server.plan.work import Workload

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
