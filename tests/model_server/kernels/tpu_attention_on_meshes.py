"""Runs the TPU kernel interpreted on four fake devices, heads and rows divided; says how far off.

The number of devices is fixed before jax starts, so tests call this as a script:

    python -m tests.model_server.kernels.tpu_attention_on_meshes

Prints one line per case: how far the results are from the reference's, and how many bytes of pages
differ.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_server.kernels import reference
from model_server.kernels.pages import LayerPages
from model_server.kernels.sequence_sharding import SequenceSharding
from model_server.kernels.tpu.attention import TpuAttention
from model_server.models.weights.sharding import AXES
from tests.model_server.kernels.step_mixes import Heads, Mix, as_on_tpu, filled, normal

MIX = Mix(decodes=(5, 0, 33, 16), chunks=((3, 9),), blocks=2, block=8, table=3)
# The rows of a step are divided over `data`, the heads over `model`.
CASES = {
    "grouped": Heads(heads=8, kv_heads=2, key_dim=24, value_dim=24, sinks=True),
    "latent": Heads(heads=4, kv_heads=1, key_dim=24, value_dim=0),
}


def differences(of: Heads, mesh: Mesh) -> tuple[float, int]:
    rng = np.random.default_rng(1)
    kernel = TpuAttention(mesh, "model", "model" if of.kv_heads > 1 else None, interpret=True)
    batch, layer = MIX.batch(rng, of.page_size, kernel), filled(rng, of, MIX.pages)
    shapes = kernel.shapes(of.cache, MIX.pages, of.page_size, jnp.dtype(of.dtype))
    q, k = (normal(rng, MIX.tokens, heads, of.key_dim) for heads in (of.heads, of.kv_heads))
    v = normal(rng, MIX.tokens, of.kv_heads, of.value_dim) if of.value_dim else None
    held = NamedSharding(mesh, PartitionSpec(None, kernel.pages))
    pages = jax.device_put(as_on_tpu(layer, shapes), held)
    split = SequenceSharding(mesh, "data", attention=True)
    truth = dataclasses.replace(batch, kernel=reference.KERNEL)
    sinks = jnp.linspace(-4.0, 4.0, of.heads, dtype=jnp.float32) if of.sinks else None
    options = {"scale": 0.2, "sinks": sinks}
    wanted, wanted_pages = truth.attend(layer, q, k, v, **options)
    divided = dataclasses.replace(batch, split=split)
    rows = NamedSharding(mesh, PartitionSpec("data", "model"))
    inputs = (jax.device_put(q, rows), k, v)
    found, pages = jax.jit(lambda *each: divided.attend(*each, **options))(pages, *inputs)
    assert pages.keys.sharding.is_equivalent_to(held, pages.keys.ndim)
    distance = float(np.abs(np.asarray(found) - np.asarray(wanted)).max())
    return distance, _different(pages, as_on_tpu(wanted_pages, shapes))


def _different(pages: LayerPages, wanted: LayerPages) -> int:
    pairs = zip(jax.tree.leaves(pages), jax.tree.leaves(wanted), strict=True)
    return sum(int((np.asarray(a)[1:] != np.asarray(b)[1:]).sum()) for a, b in pairs)


def main() -> None:
    mesh = Mesh(np.asarray(jax.devices()).reshape(1, 2, 2), AXES)
    for name, of in CASES.items():
        print(name, *differences(of, mesh))  # noqa: T201


if __name__ == "__main__":
    main()
