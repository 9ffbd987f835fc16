"""Collectives and large copies of a compiled program.

Bytes are per device. A start and its done count once; an instruction in a loop counts once per
iteration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from model_server.plan.hlo.loops import Run, runs_of
from model_server.plan.hlo.module import Array, Computation, HloModule, Instruction, parse

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_MESH = re.compile(r"replica_groups=\w+\[([^\]]*)\]\s*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']+)'(?:=(\d+)|:\(\d+\)(\d+))?")

_LAID_OUT = ("bitcast", "reshape", "copy", "transpose")


@dataclass(frozen=True, slots=True)
class Collective:
    """One exchange between devices."""

    kind: str
    name: str
    arrays: tuple[Array, ...]  # inputs or results, whichever are larger
    group: int  # number of devices that take part
    times: int  # per step
    is_open: bool  # in a loop of data-dependent length, which counts once
    source: str  # op_name: its place in the model

    @property
    def bytes(self) -> int:
        """Bytes of its arrays on one device, times its runs."""
        return self.times * sum(array.bytes for array in self.arrays)

    @property
    def sent(self) -> int:
        """Bytes that a device sends with a ring algorithm, which is optimal."""
        if self.kind == "collective-permute":
            return self.bytes
        share = self.bytes * (self.group - 1) // max(self.group, 1)
        return 2 * share if self.kind == "all-reduce" else share


@dataclass(frozen=True, slots=True)
class Copy:
    """An array that is written to HBM a second time."""

    name: str
    array: Array
    from_chip: bool  # from on-chip memory: written back, or spilled for lack of space
    times: int
    source: str

    @property
    def bytes(self) -> int:
        return self.array.bytes


def collectives(text: str | HloModule) -> list[Collective]:
    """Return every exchange between devices. Raises ValueError."""
    program = parse(text)
    return [
        each
        for run in runs_of(program)
        for computation in _with_fused(program, run.computation)
        for instruction in computation.instructions
        if (each := _collective(program, computation, instruction, run))
    ]


def large_copies(text: str | HloModule, least_bytes: int) -> list[Copy]:
    """Return copies of at least `least_bytes` into HBM: of a weight or of the pages.

    Includes copies by way of on-chip memory; a mere load into that is not a copy. Raises
    ValueError.
    """
    program = parse(text)
    return [
        Copy(each.name, array, not within.is_in_hbm(each.operands[0]), run.times, each.source)
        for run in runs_of(program)
        for within in (run.computation,)
        for each in within.instructions
        if (array := _copied(program, each)) and array.bytes >= least_bytes
    ]


def _with_fused(program: HloModule, computation: Computation) -> Iterator[Computation]:
    yield computation
    for each in computation.instructions:
        if each.opcode == "fusion" and (fused := program.called(each, "calls")):
            yield fused


def _collective(
    program: HloModule, within: Computation, each: Instruction, run: Run
) -> Collective | None:
    kind = each.opcode.removesuffix("-start")
    if kind not in COLLECTIVES:
        return None
    made = each.results
    taken = [array for name in each.operands for array in within.made(name)]
    arrays = max(made, tuple(taken), key=lambda found: sum(array.bytes for array in found))
    if kind == "all-reduce" and "scatter" in within.name:
        kind = "reduce-scatter"  # compiled to a fusion of an all-reduce that keeps one shard
    group = _group(each.rest, program.partitions)
    return Collective(kind, each.name, arrays, group, run.times, run.is_open, each.source)


def _group(rest: str, everyone: int) -> int:
    if found := _LISTED.search(rest):
        return found[1].count(",") + 1
    if found := _IOTA.search(rest):
        return int(found[2])
    if found := _MESH.search(rest):
        sizes = {name: int(size) for name, size, _ in _AXIS.findall(found[1]) if size}
        axes = [(name, part) for name, _, part in _AXIS.findall(found[2])]
        return math.prod(int(part) if part else sizes.get(name, 1) for name, part in axes)
    return everyone


def _copied(program: HloModule, each: Instruction) -> Array | None:
    """Return the array that an instruction writes to HBM unchanged, if any."""
    made = each.results
    if len(made) != 1 or not made[0].in_hbm or not each.operands:
        return None
    if each.opcode in ("copy", "copy-start", "transpose"):
        return made[0]
    fused = program.called(each, "calls") if each.opcode == "fusion" else None
    if fused is None or fused.root.opcode == "parameter":
        return None
    return made[0] if _is_respelled(fused) else None


def _is_respelled(fused: Computation) -> bool:
    """Return True if a fusion only changes the layout of an operand."""
    found: Instruction | None = fused.root
    while found and found.opcode in _LAID_OUT:
        found = fused.by_name.get(found.operands[0])
    return found is not None and found.opcode == "parameter"
