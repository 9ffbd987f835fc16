"""What steps are compiled with beyond the compiler's own choice, per kind of device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

logger = logging.getLogger(__name__)

Options = Mapping[str, bool]
_NONE: Options = MappingProxyType({})
# Layers are alike, and so is their code: written once and called, a prompt step of 96 layers has
# 23 MB of it in place of 550. Left to itself, libtpu does so only when memory is nearly full.
_TPU: Options = MappingProxyType({"xla_tpu_enable_deduplicated_calls": True})


def options_for(sharding: jax.sharding.Sharding) -> Options:
    """For programs over these devices, here or elsewhere; what their compiler does not know is out.

    Compiles a program of one addition for the first TPU it sees of each kind.
    """
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    if devices[0].platform != "tpu":
        return _NONE
    own = [each for each in devices if each.process_index == jax.process_index()]
    first = (own or devices)[0]
    return _understood(first.device_kind, SingleDeviceSharding(first))


@cache
def _understood(kind: str, sharding: SingleDeviceSharding) -> Options:
    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=sharding)
    try:
        jax.jit(lambda x: x + 1, compiler_options=dict(_TPU)).lower(shape).compile()
    except jax.errors.JaxRuntimeError as exc:
        if "No such compile option" not in str(exc):
            raise
        logger.warning("%s: this libtpu does not know %s; compiling without", kind, ", ".join(_TPU))
        return _NONE
    return _TPU
