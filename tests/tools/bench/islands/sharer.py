"""A client that always has works waiting; a process of its own.

python -m tests.tools.bench.islands.sharer PORT WEIGHT

Prints "ready"; then a line with a number of seconds counts the works that are done within them.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque

os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"

import jax
import jax.numpy as jnp
from jax.extend import backend
from jaxlib import _ifrt_proxy  # pyright: ignore[reportAttributeAccessIssue]

LEAD_S = 1.0  # until all compete
WAITING = 16  # works that it has asked for and that are not done
AT_ONCE = 2  # that it waits for together
SIZE, PRODUCTS = 256, 8  # some milliseconds


def connect(port: int, weight: int) -> None:
    def client() -> object:
        options = _ifrt_proxy.ClientConnectionOptions()
        options.initialization_data = {"name": b"a client of the benchmark", "weight": weight}
        return _ifrt_proxy.get_client(f"grpc://127.0.0.1:{port}", options)

    backend.register_backend_factory("proxy", client, priority=-1)
    jax.config.update("jax_platforms", "proxy")
    jax.config.update("jax_enable_compilation_cache", False)  # the workers have one


class Works:
    """Products of matrices, all of one size."""

    def __init__(self) -> None:
        self._given = jnp.eye(SIZE)
        self._work = jax.jit(self._products)
        self._waiting: deque[jax.Array] = deque()

    def _products(self, given: jax.Array) -> jax.Array:
        for _ in range(PRODUCTS):
            given = given @ given
        return given

    def done_within(self, seconds: float) -> int:
        """Compete for a time, and return how many works were done after the first second."""
        begins_s, done = time.monotonic() + LEAD_S, 0
        while (now_s := time.monotonic()) < begins_s + seconds:
            while len(self._waiting) < WAITING:
                self._waiting.append(self._work(self._given))
            jax.block_until_ready([self._waiting.popleft() for _ in range(AT_ONCE)])
            done += AT_ONCE * (now_s >= begins_s)
        jax.block_until_ready(self._waiting)
        self._waiting.clear()
        return done


def main() -> None:
    connect(int(sys.argv[1]), int(sys.argv[2]))
    works = Works()
    works.done_within(0.1)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(f"{works.done_within(float(line))}\n")
        sys.stdout.flush()
    os._exit(0)  # the client aborts a process that ends while connected


if __name__ == "__main__":
    main()
