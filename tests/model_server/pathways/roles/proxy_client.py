"""Programs of a client, run in a process of their own: python proxy_client.py PORT PROGRAM.

Prints one line of JSON per result.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time

os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import backend
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import _ifrt_proxy

MATRIX = np.arange(64, dtype=np.float32).reshape(8, 8)
EXPECTED = (MATRIX @ MATRIX.T).sum(0)


def tell(name: str, value: object) -> None:
    sys.stdout.write(json.dumps([name, value]) + "\n")
    sys.stdout.flush()


def mesh(island: int) -> Mesh:
    devices = [device for device in jax.devices() if device.slice_index == island]
    return Mesh(np.array(devices), ("x",))


def islands() -> None:
    tell("devices", [[device.id, device.slice_index] for device in jax.devices()])
    product = jax.jit(lambda x: (x @ x.T).sum(0))
    split = NamedSharding(mesh(0), PartitionSpec("x"))
    here = jax.device_put(MATRIX, split)
    tell("on island 0", bool(np.allclose(product(here), EXPECTED)))
    there = jax.device_put(here, NamedSharding(mesh(1), PartitionSpec("x")))
    tell("on island 1", bool(np.allclose(product(there), EXPECTED)))
    back = jax.device_put(product(there), NamedSharding(mesh(0), PartitionSpec()))
    tell("back", bool(np.allclose(back, EXPECTED)))
    tell(
        "on every device", [len(back.addressable_shards), bool(np.allclose(back * 2, 2 * EXPECTED))]
    )
    step = jax.jit(lambda x, y: (x + y, y), donate_argnums=0)
    x, y = jax.device_put(jnp.zeros(3)), jnp.ones(3)
    for _ in range(20):
        x, y = step(x, y)
    tell("donated", np.asarray(x).tolist())
    try:
        both = Mesh(np.array(jax.devices()), ("x",))
        np.asarray(jax.device_put(MATRIX, NamedSharding(both, PartitionSpec("x"))))
    except Exception as exc:
        tell("over both", str(exc))


def refused() -> None:
    """Compile a program that the compiler refuses."""
    try:
        jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()
    except Exception as exc:
        tell("refused", str(exc))


def loss() -> None:
    """Compute on island 1 until it is lost and again until it is back."""
    device = mesh(1).devices[0]
    step = jax.jit(lambda x: x * 2 + 1)
    here, there = jax.device_put(jnp.ones(4)), jax.device_put(jnp.zeros(4), device)
    tell("there", np.asarray(step(there)).tolist())
    try:
        for _ in range(10_000):
            np.asarray(step(there))
            time.sleep(0.01)
    except Exception as exc:
        tell("lost", str(exc))
    tell("here", np.asarray(step(here)).tolist())
    for _ in range(1000):
        try:
            tell("again", np.asarray(step(jax.device_put(jnp.zeros(4), device))).tolist())
            break
        except Exception:
            time.sleep(0.1)
    try:
        np.asarray(there + 1)
    except Exception as exc:
        tell("old array", str(exc))
    tell("copied", np.asarray(jax.device_put(here, device)).tolist())


def conformance() -> None:
    """Use what jax offers of arrays and programs; tell each thing that gives a wrong value."""
    every = jax.devices()
    split = NamedSharding(Mesh(np.array(every), ("x",)), PartitionSpec("x"))
    whole = NamedSharding(split.mesh, PartitionSpec())
    x = jax.device_put(MATRIX, split)
    pieces = [each.data for each in x.addressable_shards]
    joined = jax.make_array_from_single_device_arrays(x.shape, split, pieces)
    made = jax.make_array_from_callback(x.shape, split, lambda index: MATRIX[index])
    replicated = jax.device_put(x, whole)
    moved = jax.device_put(pieces[0], every[1])
    compiled = jax.jit(lambda a, b: (a @ b.T).sum(0)).lower(x, joined).compile()
    exported = export.export(jax.jit(lambda a: a * 2))(MATRIX).serialize()
    donating = jax.jit(lambda a: a + 1, donate_argnums=0)
    gone = jax.device_put(MATRIX, split)
    more = donating(gone)
    deleted = jax.device_put(MATRIX)
    deleted.delete()
    checks = {
        "assembled": np.array_equal(joined, MATRIX),
        "from a callback": np.array_equal(made, MATRIX),
        "replicated": np.array_equal(replicated, MATRIX),
        "moved": np.array_equal(moved, MATRIX[:4]),
        "a program": np.allclose(compiled(x, joined), EXPECTED),
        "its text": "HloModule" in (compiled.as_text() or ""),
        "an exported program": np.array_equal(
            export.deserialize(exported).call(MATRIX), 2 * MATRIX
        ),
        "its cost": bool(compiled.cost_analysis()),
        "donated": gone.is_deleted() and np.array_equal(more, MATRIX + 1),
        "deleted": deleted.is_deleted(),
        "ready": bool(jax.block_until_ready(more).is_ready()),
        "random bits": jax.random.bits(jax.random.key(1), (4,)).shape == (4,),
        "small dtypes": np.array_equal(
            jax.device_put(np.int8([1, -2])).astype(jnp.bfloat16), [1, -2]
        ),
        "no elements": jax.device_put(np.zeros((0, 3))).shape == (0, 3),
    }
    for name, right in checks.items():
        tell(name, bool(right))
    try:
        jax.jit(lambda a: jax.pure_callback(np.sin, a, a))(x)
    except Exception as exc:
        tell("a callback", str(exc).partition("\n")[0])
    del compiled
    jax.clear_caches()
    gc.collect()
    np.asarray(jax.device_put(MATRIX))  # programs that are gone are told before it


def main() -> None:
    port, program = sys.argv[1:]

    def client() -> object:
        return _ifrt_proxy.get_client(
            f"grpc://127.0.0.1:{port}", _ifrt_proxy.ClientConnectionOptions()
        )

    backend.register_backend_factory("proxy", client, priority=-1)
    jax.config.update("jax_platforms", "proxy")
    jax.config.update("jax_enable_compilation_cache", False)  # the workers have one
    {"islands": islands, "loss": loss, "refused": refused, "conformance": conformance}[program]()
    os._exit(0)  # the client's callbacks abort a process that ends while connected


if __name__ == "__main__":
    main()
