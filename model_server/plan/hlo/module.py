"""Parse the text of a compiled program into computations, and count how often each runs.

The text is that of `Compiled.as_text()` for a TPU: layouts give the tiling of each array and the
memory it is in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

# `%name = shape opcode(operands), attributes`; a tuple's shape contains spaces.
_INSTRUCTION = re.compile(
    r"\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|[^\s(]\S*) ([a-z][a-z0-9\-]*)\((.*)", re.DOTALL
)
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", re.DOTALL)
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_TILE = re.compile(r"T\(([\d,]+)\)")
_MEMORY = re.compile(r"S\((\d+)\)")
_CALLED = re.compile(
    r"\b(calls|body|condition|branch_computations|true_computation|false_computation"
    r"|called_computations)="
    r"(\{[^}]*\}|%[\w.\-]+)"
)
_BITS = re.compile(r"\d+")
_NUMBER = re.compile(r"-?\d+")
_KNOWN_TRIPS = re.compile(r"known_trip_count\W+n\W+(\d+)")
_RUNS = (
    "calls",
    "body",
    "branch_computations",
    "true_computation",
    "false_computation",
    "called_computations",
)
_CALLERS = ("conditional", "call", "async-start", "custom-call")  # custom-call: SparseCore programs
ELSEWHERE = "elsewhere"  # opcode of masked instructions: same arrays, no cost
_HBM = 0  # default of a layout without S(..)


@dataclass(frozen=True, slots=True)
class Array:
    """One array as laid out in memory."""

    dtype: str  # bf16, s8, s4, pred
    dims: tuple[int, ...]
    layout: tuple[int, ...]  # dimensions, minor to major
    tile: tuple[int, ...]  # () if not tiled
    memory: int  # 0: HBM; others: on-chip memory or flags

    @property
    def bytes(self) -> int:
        """Size including tile padding; 0 for types that hold no numbers."""
        return math.ceil(math.prod(self._padded) * bits_of(self.dtype) / 8)

    @property
    def in_hbm(self) -> bool:
        return self.memory == _HBM

    @property
    def _padded(self) -> tuple[int, ...]:
        if not self.tile or not self.dims:
            return self.dims
        order = self.layout or tuple(reversed(range(len(self.dims))))
        sizes = list(self.dims)
        for place, unit in zip(order, reversed(self.tile), strict=False):
            sizes[place] = -(-sizes[place] // unit) * unit
        return tuple(sizes)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    rest: str  # attributes; for parameters and constants also the text in parentheses
    is_root: bool

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        return arrays_of(self.shape)

    @property
    def results(self) -> tuple[Array, ...]:
        """Its results without the inputs that a `-start` passes through."""
        if not self.opcode.endswith("-start"):
            return self.arrays
        arrays = tuple(array for array in self.arrays if array.dims)
        if self.opcode == "copy-start":
            return arrays[:1]
        return arrays if self.opcode == "all-reduce-start" else arrays[len(arrays) // 2 :]

    @property
    def source(self) -> str:
        """Its place in the model (op_name)."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""

    @property
    def calls(self) -> dict[str, tuple[str, ...]]:
        """Computations that it runs, by the attribute that names them."""
        return {key: tuple(_NAME.findall(names)) for key, names in _CALLED.findall(self.rest)}

    def attribute(self, name: str) -> str | None:
        """Return the value of `name=`, up to the next comma outside braces."""
        found = re.search(rf"\b{name}=(\{{[^}}]*\}}+|\"[^\"]*\"|[^,\s]+)", self.rest)
        return None if found is None else found[1]


@dataclass(frozen=True)
class Computation:
    """A function of the program; its result is its root."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {each.name: each for each in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        return next((each for each in self.instructions if each.is_root), self.instructions[-1])

    @cached_property
    def parameters(self) -> Mapping[int, Instruction]:
        made = (each for each in self.instructions if each.opcode == "parameter")
        return {int(each.rest.partition(")")[0]): each for each in made}

    @cached_property
    def users(self) -> Mapping[str, Sequence[Instruction]]:
        """Instructions that use each instruction as an operand."""
        found: dict[str, list[Instruction]] = {}
        for each in self.instructions:
            for name in dict.fromkeys(each.operands):
                found.setdefault(name, []).append(each)
        return found

    def made(self, name: str) -> tuple[Array, ...]:
        found = self.by_name.get(name)
        return found.arrays if found else ()

    def is_in_hbm(self, name: str) -> bool:
        return any(array.in_hbm for array in self.made(name))

    def behind(self, name: str) -> Instruction | None:
        """Return the instruction that made these numbers, past copies, casts and reshapes."""
        found = self.by_name.get(name)
        while found and found.opcode in ("bitcast", "copy", "reshape", "convert"):
            found = self.by_name.get(found.operands[0])
        return found


@dataclass(frozen=True)
class HloModule:
    computations: Mapping[str, Computation]
    entry: Computation
    partitions: int  # number of devices

    def called(self, instruction: Instruction, attribute: str) -> Computation | None:
        names = instruction.calls.get(attribute)
        return self.computations.get(names[0]) if names else None


def parse(text: str) -> HloModule:
    """Parse a module. Raises ValueError for any other text."""
    computations: dict[str, Computation] = {}
    entry = None
    for name, is_entry, lines in _bodies(text):
        made = Computation(name, tuple(filter(None, map(_instruction, lines))))
        computations[name] = made
        entry = made if is_entry else entry
    if entry is None:
        raise ValueError("this is no text of a compiled program: it has no ENTRY computation")
    partitions = re.search(r"num_partitions=(\d+)", text[: text.find("\n")])
    return HloModule(computations, entry, int(partitions[1]) if partitions else 1)


def arrays_of(shape: str) -> tuple[Array, ...]:
    return tuple(_array(*found) for found in _ARRAY.findall(shape))


@cache
def bits_of(dtype: str) -> int:
    """Bits per number: 16 for bf16; 0 for types that hold no numbers."""
    if dtype in ("token", "opaque"):
        return 0
    if dtype == "pred":
        return 8
    found = _BITS.search(dtype)
    return int(found[0]) if found else 0


@cache
def _array(dtype: str, dims: str, layout: str) -> Array:
    order, _, rest = layout.strip("{}").partition(":")
    tile, memory = _TILE.search(rest), _MEMORY.search(rest)
    return Array(
        dtype,
        _numbers(dims),
        _numbers(order),
        _numbers(tile[1]) if tile else (),
        int(memory[1]) if memory else _HBM,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def _bodies(text: str) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield (name, is entry, lines) of each computation."""
    head, lines = None, list[str]()
    for line in text.splitlines():
        if head is None:
            if not line.startswith(" ") and (found := _COMPUTATION.match(line)):
                head, lines = found, []
        elif line.startswith("}"):
            yield head[2], bool(head[1]), lines
            head = None
        else:
            lines.append(line)


def _instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if found is None:
        return None
    root, name, shape, opcode, rest = found.groups()
    operands, _, attributes = rest.partition(")")
    # Parentheses hold a number or a value here, not operands.
    is_leaf = opcode in ("parameter", "constant")
    names = () if is_leaf else tuple(_NAME.findall(operands))
    kept = rest if is_leaf else attributes
    return Instruction(name, opcode, shape, names, kept, bool(root))


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
    if known := _KNOWN_TRIPS.search(loop.rest):
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
    number = _NUMBER.match(found.rest)
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
