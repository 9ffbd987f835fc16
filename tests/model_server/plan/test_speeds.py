"""Roofline times and notes of deployments on real slices; compiles nothing."""

from __future__ import annotations

import pytest

from model_server.plan.slices import CHIPS
from model_server.plan.speeds import DeviceWork, notes_of, roofline
from model_server.plan.topology import topology_of
from model_server.plan.work import Workload
from tests.model_server.plan.measures import deployed
from tests.model_server.tpu_compiler import needs_compiler


def test_the_slowest_of_three_bounds_a_step() -> None:
    chip = CHIPS["v5e"]
    reading = roofline(DeviceWork(flops=1e9, bytes=8.19e9, sent=1e3), chip)
    assert (reading.bound, reading.seconds) == ("HBM", pytest.approx(0.01))
    assert roofline(DeviceWork(flops=197e12, bytes=1e9, sent=1e3), chip).bound == "FLOPs"
    assert roofline(DeviceWork(flops=1e9, bytes=1e6, sent=2e9), chip).bound == "links"
    two = roofline(DeviceWork(flops=0, bytes=7380e9 / 2, sent=0), CHIPS["v7x"])
    assert two.seconds == pytest.approx(1)  # a device has half of the chip's memory


@needs_compiler
def test_a_mesh_that_does_not_divide_the_heads_is_told_with_one_that_does() -> None:
    (note,) = _notes("Qwen/Qwen2.5-7B", "v5e:2x4")  # 28 heads
    assert "28 heads (4 KV heads) do not divide over 8 devices" in note
    assert "ICI_MESH_SHAPE=[1,2,4]" in note
    assert not _notes("Qwen/Qwen2.5-7B", "v5e:2x4", ICI_MESH_SHAPE="[1,2,4]")


@pytest.mark.nightly
@needs_compiler
def test_a_mesh_smaller_than_the_slice_is_told() -> None:
    (note,) = _notes("lm_cloud.LmCloudSpmd175B32Test", "v5e:8x8")
    assert "uses 32 of the 64 devices" in note


@needs_compiler
def test_a_slice_that_nobody_lends_is_told() -> None:
    assert _notes("Llama-3-8B", "v5e:2x6")[0].startswith("Google Cloud is not known to offer")


def _notes(model: str, topology: str, **overrides: str) -> list[str]:
    return notes_of(Workload(deployed(model, topology, overrides)), topology_of(topology))
