"""Compiler options for steps, by kind of device."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

logger = logging.getLogger(__name__)

# Layers are alike, so their code can be shared: a prompt step of 96 layers then has 23 MB of code
# in place of 550. By default libtpu shares code only when memory is nearly full.
_TPU = ("xla_tpu_enable_deduplicated_calls",)


def options_for(sharding: jax.sharding.Sharding) -> dict[str, bool]:
    """Return options for programs on these devices, local or remote.

    On a TPU, test-compiles a program of one addition.
    """
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    if devices[0].platform != "tpu":
        return {}
    own = [each for each in devices if each.process_index == jax.process_index()]
    return dict.fromkeys(understood(_TPU, (own or devices)[0]), True)


@cache
def understood(names: tuple[str, ...], device: Any) -> tuple[str, ...]:
    """Return the options, or none if this device's compiler does not know one of them."""
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
