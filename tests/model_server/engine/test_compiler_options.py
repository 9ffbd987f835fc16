"""What steps are compiled with, by the compiler that would be asked."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from model_server.engine.compiling import options_for, understood
from tests.model_server.tpu_compiler import mesh_of, needs_compiler


def test_a_cpu_is_told_nothing() -> None:
    assert options_for(SingleDeviceSharding(jax.devices()[0])) == {}


@needs_compiler
def test_code_of_like_layers_is_written_once_for_a_tpu() -> None:
    sharding = NamedSharding(mesh_of("v5e:2x2"), PartitionSpec())
    assert options_for(sharding) == {"xla_tpu_enable_deduplicated_calls": True}


@needs_compiler
def test_an_option_that_this_libtpu_does_not_know_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert understood(("xla_tpu_no_such_option",), mesh_of("v6e:2x2").devices.flat[0]) == ()
    assert "does not know xla_tpu_no_such_option" in caplog.text
