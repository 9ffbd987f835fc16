"""Copies of arrays in a compiled program that write them to HBM a second time."""

from __future__ import annotations

from dataclasses import dataclass

from model_server.plan.hlo.module import Array, Computation, HloModule, Instruction, runs_of

_LAID_OUT = ("bitcast", "reshape", "copy", "transpose")


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


def large_copies(program: HloModule, least_bytes: int) -> list[Copy]:
    """Return copies of at least `least_bytes` into HBM: of a weight or of the pages.

    Includes copies by way of on-chip memory; a mere load into that is not a copy.
    """
    return [
        Copy(each.name, array, not within.is_in_hbm(each.operands[0]), run.times, each.source)
        for run in runs_of(program)
        for within in (run.computation,)
        for each in within.instructions
        if (array := _copied(program, each)) and array.bytes >= least_bytes
    ]


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
