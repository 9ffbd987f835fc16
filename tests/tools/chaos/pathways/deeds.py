"""Arithmetic on islands whose right answer is known beforehand, deed by deed.

All numbers are 32-bit and wrap around, so that every one of them is exact. A deed is a few steps;
each returns whether its numbers are right, and raises what jax raises.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Numbers = np.ndarray[Any, np.dtype[np.uint32]]
SIZES = {"small": 1 << 12, "large": 1 << 23}  # numbers of an array
_SLOPE = 2654435761
_FACTOR, _ADDEND = 1664525, 1013904223  # of a step of a long computation
_ROUNDS = {"small": 100, "large": 3_000_000}  # the latter for about a second
_DEPTH = {"small": 1, "large": 24}  # of a program; the latter compiles for about a second


class Step(NamedTuple):
    """A call of jax, or a few, that a client waits for."""

    name: str
    islands: tuple[int, ...]
    act: Callable[[], bool]


def ramp(size: int, seed: int) -> Numbers:
    """Return uint32[size]."""
    return np.arange(size, dtype=np.uint32) * np.uint32(_SLOPE) + np.uint32(seed)


def checksum(numbers: Any, xp: Any = np) -> Any:
    """Return a sum that knows the place of every number."""
    places = xp.arange(numbers.shape[0], dtype=xp.uint32) * xp.uint32(2) + xp.uint32(1)
    return xp.sum(numbers * places, dtype=xp.uint32)


def same(array: Any, numbers: Numbers) -> bool:
    """Fetch and compare. Raises what jax raises, which np.array_equal would swallow."""
    return bool((np.asarray(array) == numbers).all())


def after(rounds: int, start: Numbers) -> Numbers:
    """Return what `rounds` steps x -> x * _FACTOR + _ADDEND make of each number."""
    factor, addend = 1, 0
    step = (_FACTOR, _ADDEND)
    while rounds:
        if rounds & 1:
            factor, addend = factor * step[0], addend * step[0] + step[1]
        step = (step[0] * step[0], step[1] * step[0] + step[1])
        step = (step[0] % 2**32, step[1] % 2**32)
        factor, addend, rounds = factor % 2**32, addend % 2**32, rounds >> 1
    return start * np.uint32(factor) + np.uint32(addend)


def mixed(numbers: Any, constants: Sequence[int], xp: Any) -> Any:
    """Return numbers that depend on all constants, by a program of as many stages."""
    for constant in constants:
        numbers = xp.cumsum(numbers * xp.uint32(constant), dtype=xp.uint32)
        numbers = numbers ^ xp.flip(numbers)
    return numbers


class Deeds:
    """Those of one client while its connection lasts."""

    def __init__(self, luck: random.Random) -> None:
        found: dict[int, list[Any]] = {}
        for device in jax.devices():
            found.setdefault(device.slice_index, []).append(device)
        self._luck = luck
        self._places = {
            island: NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
            for island, devices in found.items()
        }
        self._made = {
            (island, size): jax.jit(
                lambda seed, count=count: (
                    jnp.arange(count, dtype=jnp.uint32) * jnp.uint32(_SLOPE) + seed
                ),
                out_shardings=place,
            )
            for island, place in self._places.items()
            for size, count in SIZES.items()
        }
        self._checksum = jax.jit(lambda numbers: checksum(numbers, jnp))
        self._step = jax.jit(lambda x: x * jnp.uint32(3) + jnp.uint32(1), donate_argnums=0)

    @property
    def islands(self) -> Sequence[int]:
        return sorted(self._places)

    def deed(self, name: str, island: int, size: str) -> Iterator[Step]:
        """Steps of one deed; the one that bears its name is what faults aim at."""
        return getattr(self, f"_{name.replace(' ', '_')}")(island, size)

    def round(self, size: str = "small") -> Iterator[Iterator[Step]]:
        """A deed of every kind on every island."""
        names = ("put", "fetch", "copy", "chain", "compile")
        for name, island in itertools.product(names, self.islands):
            yield self.deed(name, island, size)

    def _seed(self) -> int:
        return self._luck.randrange(2**32)

    def _make(self, island: int, size: str, seed: int) -> Any:
        return self._made[island, size](np.uint32(seed)).block_until_ready()

    def _put(self, island: int, size: str) -> Iterator[Step]:
        numbers = ramp(SIZES[size], self._seed())
        put: list[Any] = []

        def act() -> bool:
            put.append(jax.device_put(numbers, self._places[island]).block_until_ready())
            return True

        yield Step("put", (island,), act)
        yield self._checked(put, (island,), numbers)

    def _checked(self, held: list[Any], islands: tuple[int, ...], numbers: Numbers) -> Step:
        def act() -> bool:
            return int(self._checksum(held.pop())) == int(checksum(numbers))

        return Step("check", islands, act)

    def _fetch(self, island: int, size: str) -> Iterator[Step]:
        seed = self._seed()
        made: list[Any] = []

        def make() -> bool:
            made.append(self._make(island, size, seed))
            return True

        yield Step("make", (island,), make)
        numbers = ramp(SIZES[size], seed)
        yield Step("fetch", (island,), lambda: same(made.pop(), numbers))

    def _copy(self, island: int, size: str) -> Iterator[Step]:
        seed, other = self._seed(), self._other(island)
        made: list[Any] = []

        def make() -> bool:
            made.append(self._make(island, size, seed))
            return True

        def copy() -> bool:
            made.append(jax.device_put(made.pop(), self._places[other]).block_until_ready())
            return True

        yield Step("make", (island,), make)
        yield Step("copy", (island, other), copy)
        yield self._checked(made, (island, other), ramp(SIZES[size], seed))

    def _other(self, island: int) -> int:
        return next(each for each in self.islands if each != island)

    def _chain(self, island: int, size: str) -> Iterator[Step]:
        numbers = ramp(SIZES[size], self._seed())

        def act() -> bool:
            x = jax.device_put(numbers, self._places[island])
            for _ in range(5):
                x = self._step(x)
            return same(x, numbers * np.uint32(3**5) + np.uint32((3**5 - 1) // 2))

        yield Step("chain", (island,), act)

    def _compile(self, island: int, size: str) -> Iterator[Step]:
        """A program that nobody has compiled before."""
        constants = [self._seed() | 1 for _ in range(_DEPTH[size])]
        numbers = ramp(SIZES["small"], self._seed())
        return self._fresh(
            island,
            numbers,
            lambda x: mixed(x, constants, jnp),
            lambda: mixed(numbers, constants, np),
        )

    def _first_execute(self, island: int, size: str) -> Iterator[Step]:
        """A program that nobody has executed before, and that takes its time."""
        extra, rounds = self._seed(), _ROUNDS[size]
        numbers = ramp(SIZES["small"], self._seed())

        def program(x: Any) -> Any:
            def body(_: Any, y: Any) -> Any:
                return y * jnp.uint32(_FACTOR) + jnp.uint32(_ADDEND)

            return jax.lax.fori_loop(0, rounds, body, x) ^ jnp.uint32(extra)

        return self._fresh(
            island, numbers, program, lambda: after(rounds, numbers) ^ np.uint32(extra)
        )

    def _fresh(
        self,
        island: int,
        numbers: Numbers,
        program: Callable[[Any], Any],
        expected: Callable[[], Numbers],
    ) -> Iterator[Step]:
        held: list[Any] = []
        compiled: list[Any] = []

        def put() -> bool:
            held.append(jax.device_put(numbers, self._places[island]).block_until_ready())
            return True

        def compile_it() -> bool:
            compiled.append(jax.jit(program).lower(held[0]).compile())
            return True

        yield Step("put", (island,), put)
        yield Step("compile", (island,), compile_it)
        yield Step(
            "first execute",
            (island,),
            lambda: same(compiled.pop()(held.pop()), expected()),
        )

    # Arrays that are kept while something happens

    def keep(self) -> dict[int, tuple[Any, Numbers]]:
        """Return an array of each island that nobody has fetched yet, and its numbers."""
        kept: dict[int, tuple[Any, Numbers]] = {}
        for island in self.islands:
            seed = self._seed()
            kept[island] = (self._make(island, "small", seed), ramp(SIZES["small"], seed))
        return kept

    def read(self, island: int, array: Any, numbers: Numbers) -> Iterator[Step]:
        """Use a kept array in every way there is; the last fetches it."""
        other = self._other(island)
        yield Step(
            "old: compute",
            (island,),
            lambda: int(self._checksum(array)) == int(checksum(numbers)),
        )
        yield Step(
            "old: copy",
            (island, other),
            lambda: same(jax.device_put(array, self._places[other]), numbers),
        )
        yield Step("old: fetch", (island,), lambda: same(array, numbers))
