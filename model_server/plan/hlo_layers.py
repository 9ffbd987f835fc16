"""Which instructions of a compiled program belong to which layer of the model it was made from.

An instruction belongs to the last layer among those whose weights and pages it depends on: what is
computed between two layers belongs to the one before, and so does a head that has no weights yet.
Pure text; the caller knows which parameter is whose.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from model_server.plan.hlo import ELSEWHERE, Computation, Instruction, Program

BEFORE = -1  # the layer of what depends on none


def only_layers(
    program: Program, layers: Container[int], layer_of: Callable[[str], int | None]
) -> Program:
    """The program in which all but these layers costs nothing.

    layer_of: the layer that a parameter of the entry belongs to, by its op_name; None: to none.
    """
    belongs = _layers(program.entry, layer_of)

    def masked(each: Instruction) -> Instruction:
        # Scalars stay: they say how often a loop runs, and cost nothing either.
        if belongs[each.name] in layers or not any(array.dims for array in each.arrays):
            return each
        return replace(each, opcode=ELSEWHERE, rest="")

    entry = Computation(program.entry.name, tuple(map(masked, program.entry.instructions)))
    return replace(program, entry=entry, computations={**program.computations, entry.name: entry})


def _layers(entry: Computation, layer_of: Callable[[str], int | None]) -> dict[str, int]:
    """The layer of each instruction, by its name. Operands stand before their users."""
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
