"""Every program of a model, compiled for every kind of TPU: steps, choices, masks and adapters."""

from __future__ import annotations

import pytest

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.plan.depth import shallow
from tests.model_server.plan.measures import deployed
from tests.model_server.tpu_compiler import CHIPS, ONE_CHIP, needs_compiler

pytestmark = [pytest.mark.timeout(900), pytest.mark.nightly, needs_compiler]

_ADAPTERS = {"MAX_ADAPTERS": "3", "MAX_ADAPTER_RANK": "8", "MAX_CONTEXT": "1024"}
_MESHES = {"v5e:2x2": "[1,1,4]", ONE_CHIP["v7x"]: "[1,1,2]"}  # a v7x has two devices to a chip


_ALWAYS = ONE_CHIP["v5e"]
_NIGHTLY = ["v5e:2x2", *(ONE_CHIP[chip] for chip in CHIPS if ONE_CHIP[chip] != _ALWAYS)]


@pytest.mark.parametrize(
    "topology", [_ALWAYS, *(pytest.param(each, marks=pytest.mark.nightly) for each in _NIGHTLY)]
)
def test_every_program_compiles_and_the_pages_and_the_slots_stay_where_they_are(
    topology: str,
) -> None:
    overrides = {"ICI_MESH_SHAPE": _MESHES.get(topology, "null"), **_ADAPTERS}
    deep = deployed("meta-llama/Llama-3.2-1B", topology, overrides, ModelServerConfig(slots=4))
    program = shallow(deep, None, 2).program
    programs = program.programs([Bucket(4, 0), Bucket(4, 1)])
    assert {"write a slot", "copy pages", "write an adapter", "masks of 4 rows"} <= set(programs)
    for name, lower in programs.items():
        made = lower().compile()
        donated = made.memory_analysis().alias_size_in_bytes
        assert donated > 0, f"{name} copies all that it changes"
