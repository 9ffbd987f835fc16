"""Programs of a client, run in a process of their own: python proxy_client.py PORT PROGRAM.

Prints one line of JSON per result.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"

import jax
import jax.numpy as jnp
import numpy as np
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
        for _ in range(2000):
            np.asarray(step(there))
            time.sleep(0.01)
    except Exception as exc:
        tell("lost", str(exc))
    tell("here", np.asarray(step(here)).tolist())
    for _ in range(200):
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


def main() -> None:
    port, program = sys.argv[1:]

    def client() -> object:
        return _ifrt_proxy.get_client(
            f"grpc://127.0.0.1:{port}", _ifrt_proxy.ClientConnectionOptions()
        )

    backend.register_backend_factory("proxy", client, priority=-1)
    jax.config.update("jax_platforms", "proxy")
    {"islands": islands, "loss": loss, "refused": refused}[program]()
    os._exit(0)  # the client's callbacks abort a process that ends while connected


if __name__ == "__main__":
    main()
