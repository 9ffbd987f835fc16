"""Compile the two programs of a step for chips that are not present, and keep only the numbers.

The only module of the planner that compiles. The program itself, several hundred MB, is freed at
once.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from model_server.engine.buckets import Bucket
from model_server.engine.running.draft_program import DraftProgram
from model_server.engine.step_program import StepProgram
from model_server.plan.hlo.module import HloModule, parse
from model_server.plan.hlo.traffic import StepTraffic, added, traffic_of

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)i?B?"
# The two forms of libtpu's out-of-memory error.
_USED = re.compile(rf"[Uu]sed {_SIZE} of {_SIZE} hbm")
_REQUIRED = re.compile(rf"required for [^(]*\({_SIZE}\) exceeds available HBM \({_SIZE}\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The compiler's figures for the steps of one bucket; bytes and FLOPs are per device."""

    bucket: Bucket
    arguments: int
    temporaries: int
    outputs: int  # not aliased to arguments
    code: int
    flops: float  # outside kernels; a loop of data-dependent length counts once
    traffic: StepTraffic
    further: StepTraffic | None = None  # of layers that the program lacks, if they were asked for
    lower_seconds: float
    compile_seconds: float
    read_seconds: float

    @property
    def seconds(self) -> float:
        return self.lower_seconds + self.compile_seconds


class OutOfMemory(Exception):
    """Raised when a program does not fit the device's memory."""

    def __init__(self, bucket: Bucket, used: int, available: int) -> None:
        super().__init__(f"the compiler needs {used} bytes for {bucket} and has {available}")
        self.bucket = bucket
        self.used = used
        self.available = available


Part = Callable[[HloModule], StepTraffic]  # tells the traffic of layers that a program lacks


def measure(program: StepProgram, bucket: Bucket, part: Part | None = None) -> Measured:
    """Compile the forward pass of a bucket and measure it, and the layers that it lacks.

    Raises OutOfMemory.
    """
    return _measured(bucket, lambda: program.lower(bucket), part)


def measure_choice(program: StepProgram, rows: int) -> Measured:
    """Measure the program that chooses tokens from this many rows of logits.

    Raises OutOfMemory.
    """
    return _measured(Bucket(rows, 0), lambda: program.lower_choose(rows), None)


def with_choice(forward: Measured, choice: Measured) -> Measured:
    """Return the figures of steps that run both programs, one after the other."""
    return replace(
        forward,
        # The slots' state; the logits are already among the outputs of the forward pass.
        arguments=forward.arguments + max(0, choice.arguments - forward.outputs),
        temporaries=max(forward.temporaries, choice.temporaries),
        outputs=forward.outputs + choice.outputs,
        flops=forward.flops + choice.flops,
        traffic=added(forward.traffic, choice.traffic),
    )


def measure_draft_tokens(program: DraftProgram, rows: int) -> Measured:
    """Measure draft tokens for so many sequences: their loop counts once, as one of each.

    Raises OutOfMemory.
    """
    return _measured(Bucket(rows, 0), lambda: program.lower_draft_tokens(rows), None)


def with_follower(step: Measured, follower: Measured) -> Measured:
    """Return the figures of a step and of another model's that runs after it on the same chips."""
    return replace(
        step,
        arguments=step.arguments + follower.arguments,
        temporaries=max(step.temporaries, follower.temporaries),
        outputs=step.outputs + follower.outputs,
        code=step.code + follower.code,
        flops=step.flops + follower.flops,
        traffic=added(step.traffic, follower.traffic),
        lower_seconds=step.lower_seconds + follower.lower_seconds,
        compile_seconds=step.compile_seconds + follower.compile_seconds,
    )


def _measured(
    bucket: Bucket, lower: Callable[[], jax.stages.Lowered], part: Part | None
) -> Measured:
    started = time.monotonic()
    lowered = lower()
    traced = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sax-plan-") as folder:
        made = _compile(lowered, bucket, folder)
        compiled = time.monotonic()
        text = parse(_text_of(Path(folder), made))
    del lowered
    memory: Any = made.memory_analysis()
    flops = _flops(made.cost_analysis())
    return Measured(
        bucket=bucket,
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=flops,
        traffic=traffic_of(text),
        further=part(text) if part else None,
        lower_seconds=traced - started,
        compile_seconds=compiled - traced,
        read_seconds=time.monotonic() - compiled,
    )


def _text_of(folder: Path, made: Any) -> str:
    """Return the text of a compiled program, as libtpu wrote it.

    jaxlib 0.10 cannot read every program of a newer libtpu (steps on v5p, v6e and v7x whose gathers
    run on the SparseCore), so `as_text` is only the fallback.
    """
    written = sorted(folder.glob("*jit_*.after_optimizations.txt"))
    return written[-1].read_text() if written else made.as_text() or ""


def _compile(lowered: jax.stages.Lowered, bucket: Bucket, folder: str) -> Any:
    try:
        return lowered.compile({"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
    except jax.errors.JaxRuntimeError as exc:
        if found := read_refusal(str(exc)):
            raise OutOfMemory(bucket, *found) from exc
        raise


def read_refusal(text: str) -> tuple[int, int] | None:
    """Return (needed, available) bytes from a compiler error; None for any other error."""
    if "RESOURCE_EXHAUSTED" not in text:
        return None
    found = _USED.search(text) or _REQUIRED.search(text)
    if found is None:
        return None
    used, used_unit, there, there_unit = found.groups()
    return _bytes(used, used_unit), _bytes(there, there_unit)


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _flops(analysis: Any) -> float:
    # Some versions of jax return a list of one.
    found: Any = analysis[0] if isinstance(analysis, list) and analysis else analysis
    return max(0.0, float(found.get("flops", 0.0))) if found else 0.0
