"""The VMEM that a Pallas call declares, and that the TPU compiler wants for it."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp

MIB = 2**20
_TRIES = 12
_ROUNDED = 8 << 10  # the compiler names sizes with two decimals of a MiB
_UNITS = {"": 1, "K": 2**10, "M": MIB}
_WANTED = re.compile(r"Scoped allocation with size ([\d.]+)([KM]?) and limit")
_LANES, _SUBLANES = 128, 8


def run_call(call: Any, *inputs: Any, **params: Any) -> list[Any]:
    """Bind the call again with other parameters: `interpret`, `compiler_params`."""
    return call.primitive.bind(*inputs, **{**call.params, **params})


def declared_vmem(call: Any) -> int:
    """Bytes of VMEM that a call's blocks, two of each, and its scratch take, whole tiles each."""
    mappings = call.params["grid_mapping"].block_mappings
    blocks = (each.transformed_block_aval for each in mappings)
    return 2 * sum(_bytes(each) for each in blocks if is_vmem(each)) + _scratch_vmem(call)


def _scratch_vmem(call: Any) -> int:
    return sum(_bytes(each) for each in call.params["grid_mapping"].scratch_avals if is_vmem(each))


def is_vmem(ref: Any) -> bool:
    """True if a block or scratch lies in VMEM, as blocks do by default."""
    return str(ref.memory_space).lower() in ("vmem", "default")


def _bytes(ref: Any) -> int:
    """Size with the last two dimensions in whole registers: 8 rows of 32 bits, 128 lanes."""
    size = jnp.dtype(ref.dtype).itemsize
    *outer, rows, lanes = (1, 1, *ref.shape)
    tall = _SUBLANES * max(1, 4 // size)
    return math.prod(outer) * -(-rows // tall) * tall * -(-lanes // _LANES) * _LANES * size


def scoped_vmem(call: Any, sharding: Any) -> int:
    """Bytes of VMEM that the TPU compiler needs for a call, read from its refusals to do with less.

    It adds up one array after the other, so each refusal's number is the next limit.
    sharding: on one device of a TPU that need not be here.
    """
    limit = _scratch_vmem(call)  # no call can do with less
    for _ in range(_TRIES):
        wanted = _refused(call, sharding, limit)
        if wanted is None:
            return limit
        limit = wanted
    raise RuntimeError(f"the compiler refused {_TRIES} limits, the last of {limit} bytes")


def _refused(call: Any, sharding: Any, limit: int) -> int | None:
    """Return the bytes that the compiler asks for instead of a limit; None: it keeps to it."""
    tight = dataclasses.replace(call.params["compiler_params"], vmem_limit_bytes=limit)
    held = [
        jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype, sharding=sharding)
        for each in call.invars
    ]

    def alone(*inputs: Any) -> list[Any]:
        return run_call(call, *inputs, compiler_params=tight)

    specs = {"in_specs": sharding.spec, "out_specs": sharding.spec}
    everywhere = jax.shard_map(alone, mesh=sharding.mesh, **specs, check_vma=False)
    try:
        jax.jit(everywhere).lower(*held).compile()
    except jax.errors.JaxRuntimeError as exc:
        if (found := _WANTED.search(str(exc))) is None:
            raise
        return int(float(found[1]) * _UNITS[found[2]]) + _ROUNDED
    return None
