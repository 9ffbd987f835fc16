"""Count how often each computation of a program runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from model_server.plan.hlo.module import Computation, HloModule, Instruction

_CONSTANT = re.compile(r"-?\d+")
_KNOWN = re.compile(r"known_trip_count\W+n\W+(\d+)")
_RUNS = (
    "calls",
    "body",
    "branch_computations",
    "true_computation",
    "false_computation",
    "called_computations",
)
_CALLERS = ("conditional", "call", "async-start", "custom-call")  # custom-call: SparseCore programs


@dataclass(frozen=True, slots=True)
class Run:
    """A computation that runs on its own, not as a part of a fusion."""

    computation: Computation
    times: int  # per step; a loop of data-dependent length counts once
    is_open: bool  # inside such a loop


def runs_of(program: HloModule) -> Iterator[Run]:
    """Yield the entry and whatever its loops, branches and calls run, where they are called.

    Every branch counts: which one runs depends on data, and all but one do next to nothing.
    """
    yield from _within(program, Run(program.entry, 1, False))


def trips(program: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """Return the trip count of a while loop; None if it depends on data."""
    if known := _KNOWN.search(loop.rest):
        return int(known[1])
    condition = program.called(loop, "condition")
    body = program.called(loop, "body")
    if condition is None or body is None:
        return None
    test = condition.root
    if test.opcode != "compare" or test.attribute("direction") != "LT":
        return None
    counter = condition.by_name.get(test.operands[0])
    if counter is None or counter.opcode != "get-tuple-element":
        return None
    place = int(counter.attribute("index") or 0)
    end = _value(condition, test.operands[1])
    if end is None:  # passed in the loop state, like the counter
        bound = condition.by_name.get(test.operands[1])
        if bound is None or bound.opcode != "get-tuple-element":
            return None
        end = _handed_in(caller, loop, int(bound.attribute("index") or 0))
    start, step = _handed_in(caller, loop, place), _step(body, place)
    if end is None or start is None or not step:
        return None
    return max(0, -(-(end - start) // step))


def _within(program: HloModule, run: Run) -> Iterator[Run]:
    yield run
    for each in run.computation.instructions:
        if each.opcode == "while":
            count = trips(program, run.computation, each)
            times, is_open = run.times * (1 if count is None else count), count is None
            yield from _called(program, each, "body", times, is_open or run.is_open)
        elif each.opcode in _CALLERS:
            for attribute in _RUNS:
                yield from _called(program, each, attribute, run.times, run.is_open)


def _called(
    program: HloModule, caller: Instruction, attribute: str, times: int, is_open: bool
) -> Iterator[Run]:
    for name in caller.calls.get(attribute, ()):
        if found := program.computations.get(name):
            yield from _within(program, Run(found, times, is_open))


def _value(computation: Computation, name: str) -> int | None:
    found = computation.behind(name)
    if found is None or found.opcode != "constant":
        return None
    number = _CONSTANT.match(found.rest)
    return int(number[0]) if number else None


def _handed_in(caller: Computation, loop: Instruction, place: int) -> int | None:
    given = caller.by_name.get(loop.operands[0])
    if given is None or given.opcode != "tuple":
        return None
    return _value(caller, given.operands[place])


def _step(body: Computation, place: int) -> int | None:
    """Return the increment of the counter per iteration."""
    if body.root.opcode != "tuple":
        return None
    made = body.behind(body.root.operands[place])
    if made is None or made.opcode != "add":
        return None
    steps = [_value(body, name) for name in made.operands]
    return next((step for step in steps if step is not None), None)
