"""Traffic of a compiled program in one step: to and from HBM, and between devices.

Bytes are per device; an instruction in a loop counts once per iteration, a start and its done
count once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from model_server.plan.hlo.module import (
    ELSEWHERE,
    Array,
    Computation,
    HloModule,
    Instruction,
    Run,
    runs_of,
)

# These pass on existing arrays, or make none in memory.
_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "while",
    "conditional",
    "call",
    "async-start",
    "async-update",
    "async-done",
    "domain",
    ELSEWHERE,
}
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # index of the operand that is written
# Custom calls that compute nothing.
_MARKERS = ("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "Sharding", "TopK")
KERNEL = "tpu_custom_call"  # a Pallas kernel

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


@dataclass(frozen=True, slots=True)
class HbmBytes:
    """Bytes between HBM and the chip in one step; `read` and `written` exclude kernels."""

    read: int
    written: int
    kernels: int  # arrays of Pallas kernels, except those updated in place
    open_loops: int  # of these: in loops of data-dependent length, counted once

    @property
    def total(self) -> int:
        return self.read + self.written + self.kernels


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
class StepTraffic:
    """Data moved by a program in one step; bytes are per device."""

    moved: HbmBytes
    sent: dict[str, int]  # bytes to other devices, by kind of collective
    exchanges: int  # number of collectives


NOTHING = StepTraffic(HbmBytes(0, 0, 0, 0), {}, 0)


def added(traffic: StepTraffic, more: StepTraffic, times: float = 1) -> StepTraffic:
    """Return the traffic with `more` added this many times."""

    def line(here: int, each: int) -> int:
        return here + round(each * times)

    pairs = zip(astuple(traffic.moved), astuple(more.moved), strict=True)
    kinds = {**traffic.sent, **more.sent}
    return StepTraffic(
        HbmBytes(*(line(here, each) for here, each in pairs)),
        {kind: line(traffic.sent.get(kind, 0), more.sent.get(kind, 0)) for kind in kinds},
        line(traffic.exchanges, more.exchanges),
    )


def traffic_of(program: HloModule) -> StepTraffic:
    exchanged = collectives(program)
    sent: dict[str, int] = {}
    for each in exchanged:
        sent[each.kind] = sent.get(each.kind, 0) + each.sent
    return StepTraffic(bytes_moved(program), sent, sum(each.times for each in exchanged))


def bytes_moved(program: HloModule) -> HbmBytes:
    """Count the bytes that one step reads from HBM and writes to it.

    A fusion counts its inputs and results; for an array that it only slices or gathers from, the
    part taken; for one that it updates in place, the part written. A Pallas kernel counts its
    arrays except those updated in place: only the kernel knows how much of those it reads.
    """
    read = written = kernels = open_loops = 0
    for run in runs_of(program):
        for each in run.computation.instructions:
            ins, outs, given = _traffic(program, run.computation, each)
            read, written = read + run.times * ins, written + run.times * outs
            kernels += run.times * given
            open_loops += (ins + outs + given) * run.is_open
    return HbmBytes(read, written, kernels, open_loops)


def collectives(program: HloModule) -> list[Collective]:
    return [
        each
        for run in runs_of(program)
        for computation in _with_fused(program, run.computation)
        for instruction in computation.instructions
        if (each := _collective(program, computation, instruction, run))
    ]


def _traffic(program: HloModule, within: Computation, each: Instruction) -> tuple[int, int, int]:
    """Bytes read, written, and passed to a kernel."""
    if each.opcode in _FREE or each.opcode.endswith("-done"):
        return 0, 0, 0
    if each.opcode == "custom-call":
        return _of_custom_call(within, each)
    if each.opcode == "fusion" and (fused := program.called(each, "calls")):
        return (*_of_fusion(within, each, fused), 0)
    made = _hbm(each.results)
    if each.opcode in (*_SLICES, "slice-start", "dynamic-slice-start"):
        taken = _size(each.results) if within.is_in_hbm(each.operands[0]) else 0
        return taken, made, 0
    if place := _UPDATES.get(each.opcode):
        part = _size(within.made(each.operands[place]))
        return _hbm(within.made(each.operands[place])), part if made else 0, 0
    return sum(_hbm(within.made(name)) for name in each.operands), made, 0


def _of_custom_call(within: Computation, each: Instruction) -> tuple[int, int, int]:
    target = (each.attribute("custom_call_target") or "").strip('"')
    if target in _MARKERS or each.calls.get(
        "called_computations"
    ):  # its computation is counted itself
        return 0, 0, 0
    ins = [_hbm(within.made(name)) for name in each.operands]
    outs = [_hbm((array,)) for array in each.arrays]
    for out, operand in _aliases(each.rest):
        outs[out if out < len(outs) else 0] = 0
        ins[operand] = 0
    if target == KERNEL:
        return 0, 0, sum(ins) + sum(outs)
    return sum(ins), sum(outs), 0


def _aliases(rest: str) -> Iterator[tuple[int, int]]:
    """Results aliased to operands: `output_to_operand_aliasing={{0}: (1, {})}`."""
    found = re.search(r"output_to_operand_aliasing=\{(.*?\))\s*\}", rest)
    for out, operand in re.findall(r"\{(\d*)\}: \((\d+),", found[1] if found else ""):
        yield int(out or 0), int(operand)


def _of_fusion(within: Computation, each: Instruction, fused: Computation) -> tuple[int, int]:
    read = 0
    for place, name in enumerate(each.operands):
        if within.is_in_hbm(name) and (parameter := fused.parameters.get(place)):
            read += _taken(fused, parameter)
    roots = _roots(fused)
    results = each.arrays
    if len(roots) != len(results):
        return read, _hbm(results)
    written = sum(_written(fused, root, array) for root, array in zip(roots, results, strict=True))
    return read, written


def _taken(fused: Computation, parameter: Instruction) -> int:
    """Bytes that a fusion reads of one of its operands."""
    whole, total = _size(parameter.arrays), 0
    for user, name in _users(fused, parameter):
        if user.opcode in _SLICES and user.operands[0] == name:
            total += _size(user.arrays)
        elif user.opcode in _UPDATES and user.operands[0] == name:
            continue  # in place: counted as written
        else:
            return whole
    return min(whole, total)


def _users(fused: Computation, made: Instruction) -> Iterator[tuple[Instruction, str]]:
    """Yield users of these numbers, past bitcasts, with the operand name they use."""
    for user in fused.users.get(made.name, ()):
        if user.opcode == "bitcast":
            yield from _users(fused, user)
        else:
            yield user, made.name


def _roots(fused: Computation) -> Sequence[Instruction]:
    root = fused.root
    if root.opcode != "tuple":
        return [root]
    return [fused.by_name[name] for name in root.operands if name in fused.by_name]


def _written(fused: Computation, root: Instruction, result: Array) -> int:
    if not result.in_hbm:
        return 0
    while root.opcode == "bitcast" and root.operands[0] in fused.by_name:
        root = fused.by_name[root.operands[0]]
    place = _UPDATES.get(root.opcode)
    if place is None:
        return result.bytes
    return min(result.bytes, _size(fused.made(root.operands[place])))


def _hbm(arrays: Sequence[Array]) -> int:
    return sum(array.bytes for array in arrays if array.in_hbm)


def _size(arrays: Sequence[Array]) -> int:
    return sum(array.bytes for array in arrays)


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
