from __future__ import annotations

from model_server.pathways.resources.instance_type import InstanceType, parse_instance_type
from sax.errors import InvalidRequest
from tests.model_server.refusals import refusal


def test_islands_are_made_of_so_many_devices() -> None:
    means = {
        "cpu:2": InstanceType("cpu", "", 2),
        "gpu:8": InstanceType("gpu", "", 8),
        "tpuv5e:4x8": InstanceType("tpu", "v5e", 32),
        "tpuv6e:2x2x2": InstanceType("tpu", "v6e", 8),
        "tpuv3:2x2": InstanceType("tpu", "v3", 8),
        " TPUv5p:4 ": InstanceType("tpu", "v5p", 4),
    }
    assert {text: parse_instance_type(text) for text in means} == means


def test_what_is_no_type_is_refused() -> None:
    for text in ("", "cpu", "cpu:", "cpu:x", "npu:2", "tpuv5e:4x", "cpu:0"):
        told = refusal(parse_instance_type, text)
        assert (told.kind, "--instance_type" in told.text) == (InvalidRequest, True), text
