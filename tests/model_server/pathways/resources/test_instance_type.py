from __future__ import annotations

import pytest

from model_server.pathways.resources.instance_type import InstanceType, parse_instance_type
from sax.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("cpu:2", InstanceType("cpu", "", 2)),
        ("gpu:8", InstanceType("gpu", "", 8)),
        ("tpuv5e:4x8", InstanceType("tpu", "v5e", 32)),
        ("tpuv6e:2x2x2", InstanceType("tpu", "v6e", 8)),
        ("tpuv3:2x2", InstanceType("tpu", "v3", 8)),
        (" TPUv5p:4 ", InstanceType("tpu", "v5p", 4)),
    ],
)
def test_islands_are_made_of_so_many_devices(text: str, means: InstanceType) -> None:
    assert parse_instance_type(text) == means


@pytest.mark.parametrize("text", ["", "cpu", "cpu:", "cpu:x", "npu:2", "tpuv5e:4x", "cpu:0"])
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--instance_type"):
        parse_instance_type(text)
