"""What steps are compiled with beyond the compiler's own choice, per kind of device."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

logger = logging.getLogger(__name__)

# Layers are alike, and so is their code: written once and called, a prompt step of 96 layers has
# 23 MB of it in place of 550. Left to itself, libtpu does so only when memory is nearly full.
_TPU = ("xla_tpu_enable_deduplicated_calls",)


def options_for(sharding: jax.sharding.Sharding) -> dict[str, bool]:
    """For programs over these devices, here or elsewhere.

    Compiles a program of one addition for the first TPU it sees.
    """
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    if devices[0].platform != "tpu":
        return {}
    own = [each for each in devices if each.process_index == jax.process_index()]
    return dict.fromkeys(understood(_TPU, (own or devices)[0]), True)


@cache
def understood(names: tuple[str, ...], device: Any) -> tuple[str, ...]:
    """The options, or none of them where the compiler of this device does not know one."""
    shape = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        plus_one = jax.jit(lambda x: x + 1, compiler_options=dict.fromkeys(names, True))
        plus_one.lower(shape).compile()
    except jax.errors.JaxRuntimeError as exc:
        if "No such compile option" not in str(exc):
            raise
        logger.warning("this libtpu does not know %s; compiling without", " and ".join(names))
        return ()
    return names
