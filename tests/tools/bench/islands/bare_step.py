"""A step of a model's shape that computes nothing; a process of its own.

python -m tests.tools.bench.islands.bare_step

330 arguments, 60 of them donated, with one array stored and one fetched a step, and one step in
flight. Prints "ready"; then a line with a number of steps runs so many and prints a `Decoded`.
"""

from __future__ import annotations

import os
import sys
import time

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from model_server.islands import BACKEND, is_proxied
from tests.model_server.islands.decode_client import Decoded

LEAVES, PAGES = 269, 60


def compute(leaves: list[jax.Array], pages: list[jax.Array], vector: jax.Array) -> object:
    return vector + leaves[0], [page + 1 for page in pages]


class BareSteps:
    """Arrays of the size of nothing, on jax's first device."""

    def __init__(self) -> None:
        self._leaves = [jnp.zeros(8, jnp.int32) for _ in range(LEAVES)]
        self._pages = [jnp.zeros(8, jnp.int32) for _ in range(PAGES)]
        vector = np.zeros(8, np.int32)
        step = jax.jit(compute, donate_argnums=1)
        self._step = step.lower(self._leaves, self._pages, vector).compile()

    def run(self, steps: int) -> Decoded:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        before = self._launch()
        for _ in range(steps):
            after = self._launch()
            np.asarray(before)
            before = after
        np.asarray(before)
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        return Decoded([], steps, 1e3 * took_s / steps, 1e3 * cpu_s / steps)

    def _launch(self) -> jax.Array:
        vector, self._pages = self._step(self._leaves, self._pages, np.zeros(8, np.int32))
        vector.copy_to_host_async()
        return vector


def main() -> None:
    if is_proxied():
        BACKEND.register(os.environ)
    bare = BareSteps()
    bare.run(3)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.buffer.write(msgspec.json.encode(bare.run(int(line))) + b"\n")
        sys.stdout.flush()
    os._exit(0)  # the client of a proxy server aborts a process that ends while connected


if __name__ == "__main__":
    main()
