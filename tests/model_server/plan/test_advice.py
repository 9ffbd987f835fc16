"""Changes and slices with which a model fits, by arithmetic; compiles nothing."""

from __future__ import annotations

from model_server.config import ModelServerConfig
from model_server.plan.advice import attempt, changes, fitting_slices
from model_server.plan.model import open_model
from model_server.plan.topology import topology_of
from tests.model_server.tpu_compiler import needs_compiler

pytestmark = [needs_compiler]


def test_advice_names_only_changes_with_which_it_fits() -> None:
    topology, config = topology_of("v5e:1x1"), ModelServerConfig()
    with open_model("Qwen3-14B") as model:
        found = changes(model, {}, topology, config)
        assert found[0].startswith('--set QUANTIZE="int4": ')
        assert found[-1].startswith("--topology v5e:2x2: ")
        assert not any("int8" in text and "int4" not in text for text in found)
        recipe = model.recipe({"QUANTIZE": '"int4"'})
        assert attempt(model, recipe, topology, config).fits


def test_the_smallest_slice_is_found_by_arithmetic() -> None:
    with open_model("Llama-3-70B") as model:
        recipe = model.recipe({})
        sizes = fitting_slices(model, recipe, ModelServerConfig(), ["v5e"])
        assert next(sizes)[0].name == "v5e:4x4"
