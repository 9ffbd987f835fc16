"""Assign the instructions of a compiled program to the layers of its model.

An instruction belongs to the last layer among those whose weights and pages it depends on: whatever
is computed between two layers belongs to the one before, and so does a head that has no weights
yet. The caller knows which parameter belongs to which layer.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from model_server.plan.hlo.module import ELSEWHERE, Computation, HloModule, Instruction

BEFORE = -1  # layer of instructions that depend on none


def only_layers(
    program: HloModule, layers: Container[int], layer_of: Callable[[str], int | None]
) -> HloModule:
    """Return the program with the cost of all other layers masked.

    layer_of: maps the op_name of an entry parameter to its layer; None: to none.
    """
    belongs = _layers(program.entry, layer_of)

    def masked(each: Instruction) -> Instruction:
        # Scalars stay: loop bounds are read from them, and they cost nothing.
        if belongs[each.name] in layers or not any(array.dims for array in each.arrays):
            return each
        return replace(each, opcode=ELSEWHERE, rest="")

    entry = Computation(program.entry.name, tuple(map(masked, program.entry.instructions)))
    return replace(program, entry=entry, computations={**program.computations, entry.name: entry})


def _layers(entry: Computation, layer_of: Callable[[str], int | None]) -> dict[str, int]:
    """Return the layer of each instruction, by name; relies on operands preceding their users."""
    found: dict[str, int] = {}
    for each in entry.instructions:
        if each.opcode == "parameter":
            layer = layer_of(each.source)
            found[each.name] = BEFORE if layer is None else layer
        else:
            found[each.name] = max(
                (found.get(name, BEFORE) for name in each.operands), default=BEFORE
            )
    return found
