"""What a device may hold."""

from __future__ import annotations

import jax

from model_server.config import ModelServerConfig
from model_server.loading.device_memory import device_limit


def test_the_cpu_devices_of_one_process_share_the_machines_memory() -> None:
    config = ModelServerConfig(memory_limit_bytes=2**30)
    own = jax.local_devices()[:1]
    assert device_limit(own, config) == 2**30
    assert device_limit(own * 4, config) == 2**28
