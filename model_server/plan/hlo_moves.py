"""What a compiled program moves: between chips, within memory, and through it in one step.

Bytes are those of one device. A start and its done count once, what runs in a loop as often as the
loop goes round. Pure text; knows no compiler and no model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from model_server.plan.hlo import Array, Computation, Instruction, Program, parse
from model_server.plan.hlo_loops import Run, runs_of

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

# These hand on what others made, or make nothing that is in memory.
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
}
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # which operand is what is written
_SPELLINGS = ("bitcast", "reshape", "convert", "copy", "transpose")
# Custom calls that compute nothing.
_MARKERS = ("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "Sharding", "TopK")
KERNEL = "tpu_custom_call"  # a Pallas kernel


@dataclass(frozen=True, slots=True)
class Collective:
    """One exchange between devices."""

    kind: str
    name: str
    arrays: tuple[Array, ...]  # the largest of what goes in and what comes out
    group: int  # devices that take part
    times: int  # in one step
    is_open: bool  # within a loop whose length is data, which counts once
    source: str  # op_name: where in the model it comes from

    @property
    def bytes(self) -> int:
        """Of its arrays on one device, as often as it runs."""
        return self.times * sum(array.bytes for array in self.arrays)

    @property
    def sent(self) -> int:
        """Bytes that a device sends: with a ring, which no way of doing it betters."""
        if self.kind == "collective-permute":
            return self.bytes
        share = self.bytes * (self.group - 1) // max(self.group, 1)
        return 2 * share if self.kind == "all-reduce" else share


@dataclass(frozen=True, slots=True)
class Copy:
    """An array that is written a second time, from HBM to HBM."""

    name: str
    array: Array
    times: int
    source: str

    @property
    def bytes(self) -> int:
        return self.array.bytes


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes between HBM and the chip in one step, outside of kernels."""

    read: int
    written: int
    kernels: int  # arrays that Pallas kernels are given and do not update in place
    open_loops: int  # of these: in loops whose length is data, which count once

    @property
    def total(self) -> int:
        return self.read + self.written + self.kernels


def collectives(text: str | Program) -> list[Collective]:
    """Every exchange between devices. Raises ValueError."""
    program = parse(text)
    return [
        each
        for run in runs_of(program)
        for computation in _with_fused(program, run.computation)
        for instruction in computation.instructions
        if (each := _collective(program, computation, instruction, run))
    ]


def large_copies(text: str | Program, least_bytes: int) -> list[Copy]:
    """Copies of so many bytes, from HBM to HBM: of a weight, or of the pages. Raises ValueError."""
    program = parse(text)
    return [
        Copy(each.name, array, run.times, _source(each))
        for run in runs_of(program)
        for each in run.computation.instructions
        if (array := _copied(program, run.computation, each)) and array.bytes >= least_bytes
    ]


def bytes_moved(text: str | Program) -> Moved:
    """What one step reads from HBM and writes to it.

    A fusion counts what it is given and what it makes; of an array that it only slices or gathers
    from, what it takes; of one that it updates in place, what it writes. A Pallas kernel counts
    what it is given, less what it updates in place: only the kernel knows how much of that it
    reads. Raises ValueError.
    """
    program = parse(text)
    read = written = kernels = open_loops = 0
    for run in runs_of(program):
        for each in run.computation.instructions:
            ins, outs, given = _traffic(program, run.computation, each)
            read, written = read + run.times * ins, written + run.times * outs
            kernels += run.times * given
            open_loops += (ins + outs + given) * run.is_open
    return Moved(read, written, kernels, open_loops)


def _with_fused(program: Program, computation: Computation) -> Iterator[Computation]:
    yield computation
    for each in computation.instructions:
        if each.opcode == "fusion" and (fused := program.called(each, "calls")):
            yield fused


def _collective(
    program: Program, within: Computation, each: Instruction, run: Run
) -> Collective | None:
    kind = each.opcode.removesuffix("-start")
    if kind not in COLLECTIVES:
        return None
    made = _results(each)
    taken = [array for name in each.operands for array in _made(within, name)]
    arrays = max(made, tuple(taken), key=lambda found: sum(array.bytes for array in found))
    if kind == "all-reduce" and "scatter" in within.name:
        kind = "reduce-scatter"  # the compiler writes it as a fusion that keeps a part
    group = _group(each.rest, program.partitions)
    return Collective(kind, each.name, arrays, group, run.times, run.is_open, _source(each))


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


def _results(each: Instruction) -> tuple[Array, ...]:
    """What it makes; of a start, which also hands on what it was given, the last but flags."""
    if not each.opcode.endswith("-start"):
        return each.arrays
    arrays = tuple(array for array in each.arrays if array.dims)
    if each.opcode == "copy-start":
        return arrays[:1]
    if each.opcode == "all-reduce-start":
        return arrays
    return arrays[len(arrays) // 2 :]


def _made(within: Computation, name: str) -> tuple[Array, ...]:
    found = within.by_name.get(name)
    return found.arrays if found else ()


def _source(each: Instruction) -> str:
    found = re.search(r'op_name="([^"]*)"', each.rest)
    return found[1] if found else ""


def _copied(program: Program, within: Computation, each: Instruction) -> Array | None:
    """What an instruction writes a second time without having changed it."""
    made = _results(each)
    if len(made) != 1 or not made[0].in_hbm or not each.operands:
        return None
    given = _made(within, each.operands[0])
    if each.opcode in ("copy", "copy-start", "transpose"):
        return made[0] if given and given[0].in_hbm else None
    fused = program.called(each, "calls") if each.opcode == "fusion" else None
    if fused is None:
        return None
    first = fused.root
    while first.opcode in _SPELLINGS and first.opcode != "convert":
        inner = fused.by_name.get(first.operands[0])
        if inner is None:
            return None
        first = inner
    return made[0] if first.opcode == "parameter" and fused.root is not first else None


def _traffic(program: Program, within: Computation, each: Instruction) -> tuple[int, int, int]:
    """Bytes read, written, and given to a kernel."""
    if each.opcode in _FREE or each.opcode.endswith("-done"):
        return 0, 0, 0
    if each.opcode == "custom-call":
        return _of_custom_call(within, each)
    if each.opcode == "fusion" and (fused := program.called(each, "calls")):
        return (*_of_fusion(within, each, fused), 0)
    made = _hbm(_results(each))
    if each.opcode in (*_SLICES, "slice-start", "dynamic-slice-start"):
        taken = _size(_results(each)) if _is_in_hbm(within, each.operands[0]) else 0
        return taken, made, 0
    if place := _UPDATES.get(each.opcode):
        part = _size(_made(within, each.operands[place]))
        return _hbm(_made(within, each.operands[place])), part if made else 0, 0
    return sum(_hbm(_made(within, name)) for name in each.operands), made, 0


def _of_custom_call(within: Computation, each: Instruction) -> tuple[int, int, int]:
    target = (each.attribute("custom_call_target") or "").strip('"')
    if target in _MARKERS:
        return 0, 0, 0
    ins = [_hbm(_made(within, name)) for name in each.operands]
    outs = [_hbm((array,)) for array in each.arrays]
    for out, operand in _aliases(each.rest):
        outs[out if out < len(outs) else 0] = 0
        ins[operand] = 0
    if target == KERNEL:
        return 0, 0, sum(ins) + sum(outs)
    return sum(ins), sum(outs), 0


def _aliases(rest: str) -> Iterator[tuple[int, int]]:
    """Results that take the place of operands: `output_to_operand_aliasing={{0}: (1, {})}`."""
    found = re.search(r"output_to_operand_aliasing=\{(.*?\))\s*\}", rest)
    for out, operand in re.findall(r"\{(\d*)\}: \((\d+),", found[1] if found else ""):
        yield int(out or 0), int(operand)


def _of_fusion(within: Computation, each: Instruction, fused: Computation) -> tuple[int, int]:
    read = 0
    for place, name in enumerate(each.operands):
        if _is_in_hbm(within, name) and (parameter := fused.parameters.get(place)):
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
            continue  # in place: what is written is counted where it is written
        else:
            return whole
    return min(whole, total)


def _users(fused: Computation, made: Instruction) -> Iterator[tuple[Instruction, str]]:
    """Who uses these numbers, past other spellings of them; and under which name."""
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
    return min(result.bytes, _size(_made(fused, root.operands[place])))


def _is_in_hbm(within: Computation, name: str) -> bool:
    return any(array.in_hbm for array in _made(within, name))


def _hbm(arrays: Sequence[Array]) -> int:
    return sum(array.bytes for array in arrays if array.in_hbm)


def _size(arrays: Sequence[Array]) -> int:
    return sum(array.bytes for array in arrays)
