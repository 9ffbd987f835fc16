"""Programs with functions of jax's `colocated_python`: python functions_client.py PORT PROGRAM.

Run in a process of their own, with jaxlib's client and jax as they are. Prints one line of JSON per
result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"

import jax
import numpy as np
from jax.experimental import colocated_python
from jax.extend import backend
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import _ifrt_proxy  # pyright: ignore[reportAttributeAccessIssue]

NUMBERS = np.arange(8, dtype=np.float32)


def tell(name: str, value: object) -> None:
    sys.stdout.write(json.dumps([name, value]) + "\n")
    sys.stdout.flush()


def split(island: int) -> NamedSharding:
    devices = [device for device in jax.devices() if device.slice_index == island]
    beside = colocated_python.colocated_cpu_devices(devices)
    return NamedSharding(Mesh(np.array(beside), ("x",)), PartitionSpec("x"))


def functions() -> None:
    @colocated_python.colocated_python
    def half_and_process(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        made = [
            jax.device_put(np.full(each.data.shape, os.getpid(), np.int32), each.device)
            for each in x.addressable_shards
        ]
        who = jax.make_array_from_single_device_arrays(x.shape, x.sharding, made)
        halves = [jax.device_put(np.asarray(each.data) / 2, each.device)
                  for each in x.addressable_shards]  # fmt: skip
        return jax.make_array_from_single_device_arrays(x.shape, x.sharding, halves), who

    for island in (0, 1):
        x = jax.device_put(NUMBERS, split(island))
        halves, who = half_and_process(x)
        tell(f"halves {island}", np.asarray(halves).tolist())
        tell(f"processes {island}", sorted(set(np.asarray(who).tolist())))
        again, _ = half_and_process(x)  # now that it is known what it returns
        tell(f"again {island}", np.asarray(jax.jit(lambda a: a * 4)(again)).tolist())


def specialised() -> None:
    """Functions that say what they return: nothing is waited for until the end."""

    @colocated_python.colocated_python
    def plus_one(x: jax.Array) -> jax.Array:
        made = [jax.device_put(np.asarray(each.data) + 1, each.device)
                for each in x.addressable_shards]  # fmt: skip
        return jax.make_array_from_single_device_arrays(x.shape, x.sharding, made)

    known = plus_one.specialize(out_specs_fn=lambda x: x)
    x = jax.device_put(NUMBERS, split(0))
    for _ in range(5):
        x = known(x)
    tell("plus five", np.asarray(x).tolist())
    donating = jax.jit(lambda a: a + 1, donate_argnums=0)
    y = jax.device_put(NUMBERS, split(1))
    made = known(y)
    more = donating(y)  # the function has read it before
    tell("before", np.asarray(made).tolist())
    tell("after", np.asarray(more).tolist())


def objects() -> None:
    @colocated_python.colocated_python_class
    class Counter:
        def __init__(self, start: int) -> None:
            self.count = start

        def add(self, x: jax.Array) -> jax.Array:
            self.count += int(np.asarray(x.addressable_shards[0].data)[0])
            return jax.device_put(np.full((2,), self.count, np.int32), x.sharding)

    device = jax.devices()[0]
    two = jax.device_put(np.array([2, 0], np.int32), device)
    counter: Any = Counter(10)  # pyright: ignore[reportCallIssue]
    tell("counted", [np.asarray(counter.add(two)).tolist() for _ in range(3)])


def failures() -> None:
    @colocated_python.colocated_python
    def wrong(x: jax.Array) -> jax.Array:
        raise ValueError("no such shard")

    @colocated_python.colocated_python
    def dying(x: jax.Array) -> jax.Array:
        os._exit(3)

    @colocated_python.colocated_python
    def fine(x: jax.Array) -> jax.Array:
        return x

    x = jax.device_put(NUMBERS, jax.devices()[0])
    for name, function in (("wrong", wrong), ("dying", dying)):
        try:
            np.asarray(function(x))
        except Exception as exc:
            tell(name, str(exc))
    tell("island", np.asarray(jax.jit(lambda a: a + 1)(x)).tolist())
    for _ in range(100):
        try:
            tell("fine", np.asarray(fine(x)).tolist())
            break
        except Exception:
            time.sleep(0.2)


def refused() -> None:
    try:
        colocated_python.colocated_python(lambda x: x)(jax.device_put(NUMBERS, jax.devices()[0]))
    except Exception as exc:
        tell("refused", str(exc))


def main(port: str, program: str) -> None:
    options = _ifrt_proxy.ClientConnectionOptions()
    target = f"grpc://127.0.0.1:{port}"
    backend.register_backend_factory("proxy", lambda: _ifrt_proxy.get_client(target, options))
    jax.config.update("jax_platforms", "proxy")
    jax.config.update("jax_enable_compilation_cache", False)
    programs = (functions, specialised, objects, failures, refused)
    {each.__name__: each for each in programs}[program]()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
