"""A compiled step of each dense family reads its weights and its cache once, and no more.

Compiled for real, at the families' real sizes, with the few layers that a plan takes. The tests
look in the program's text for bytes moved, weights gathered from all devices and copies of the
page pool; programs that do these things prove that they would be seen.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.loading.deployment import Deployment
from model_server.plan.compiled import Part, measure, measure_choice, with_choice
from model_server.plan.depth import Growth, depths_of, further_layers, shallow, whole
from model_server.plan.hlo.module import HloModule, parse
from model_server.plan.hlo.traffic import NOTHING, Collective, StepTraffic, collectives
from model_server.plan.output.registry_page import Case
from model_server.plan.planner import usual_context
from model_server.plan.slices import Chip
from model_server.plan.speeds import planned_step
from model_server.plan.topology import topology_of
from model_server.plan.work import Workload
from tests.model_server.plan.copies import large_copies
from tests.model_server.plan.measures import deployed
from tests.model_server.tpu_compiler import mesh_of, needs_compiler

pytestmark = [pytest.mark.nightly, needs_compiler]

_MOST = 1.15  # bytes moved to those that no step can do without
_BUCKET = Bucket(8, 0)
_CONFIG = ModelServerConfig()


def _id(case: Case) -> str:
    adapters = "-adapters" if "MAX_ADAPTERS" in case.overrides else ""
    return f"{case.model.rpartition('/')[2].rpartition('.')[2]}-{case.topology}{adapters}"


_SHORT = {"MAX_CONTEXT": "8192"}
_CASES = [
    Case("lm_cloud.LmCloudSpmd175B32Test", "v5e:4x8"),
    Case("meta-llama/Llama-3-8B", "v5e:2x4", {"MAX_ADAPTERS": "16", "MAX_ADAPTER_RANK": "16"}),
    Case("meta-llama/Llama-3-8B", "v5e:2x4"),
    Case("lm_cloud.LmCloudSpmd2BTest", "v5e:1x1"),
    Case("saxml.server.pax.lm.params.gptj.GPTJ", "v5e:2x2", {"ICI_MESH_SHAPE": "[1,1,4]"}),
    Case("saxml.server.pax.lm.params.lm_cloud.LLaMA7BFP16TPUv5e", "v5e:2x2"),
    Case("meta-llama/Llama-3-8B", "v6e:1x1"),
    Case("meta-llama/Llama-3-70B", "v5p:2x2x1"),
    Case("meta-llama/Llama-3-70B", "v5e:4x4", {"QUANTIZE": '"int8"'}),
    Case("google/gemma-2b", "v5e:1x1"),
    Case("google/gemma-7b", "v5e:2x2"),
    Case("google/gemma-2-9b", "v5e:2x2"),
    Case("google/gemma-3-12b", "v5e:2x2", _SHORT),
    Case("mistralai/Mistral-7B", "v5e:2x2"),
    Case("Qwen/Qwen2.5-7B", "v5e:2x2", _SHORT),
    Case("Qwen/Qwen3-8B", "v5e:2x2", _SHORT),
    Case("allenai/OLMo-2-13B", "v5e:2x2"),
    Case("microsoft/phi-4", "v5e:2x2"),
    Case("allenai/Olmo-3-7B", "v5e:2x2", _SHORT),
    Case("ibm-granite/granite-3.3-8b", "v5e:2x2", _SHORT),
    Case("zai-org/GLM-4-9B-0414", "v5e:2x2", _SHORT),
    Case("CohereLabs/c4ai-command-r7b-12-2024", "v5e:2x2"),
    Case("bigcode/starcoder2-15b", "v5e:2x4", _SHORT),
    Case("meta-llama/Llama-3-8B", "v7x:2x2x1"),
]


@pytest.mark.parametrize("case", _CASES, ids=_id)
def test_a_decode_step_with_penalties_and_masks_reads_weights_and_cache_once_and_copies_neither(
    case: Case,
) -> None:
    target = deployed(case.model, case.topology, dict(case.overrides), _CONFIG)
    program, ratio = _compiled(target, topology_of(case.topology).chip)
    assert 0.95 < ratio <= _MOST, f"{ratio:.3f} times the unavoidable bytes"
    assert _gathered(program, _least_weight(target)) == []
    assert large_copies(program, _pool_bytes(target)) == []


def test_a_pool_that_would_fit_the_chips_own_memory_stays_where_it_is() -> None:
    """The compiler carries small arrays there and back where a kernel lets them lie anywhere."""
    target, found = _small(2), []
    measure(target.program, Bucket(2, 1), _kept(found))
    assert large_copies(found[0], _pool_bytes(target)) == []


def test_the_code_of_like_layers_is_there_once() -> None:
    two, six = (measure(_small(layers).program, Bucket(2, 1)).code for layers in (2, 6))
    assert six < 1.25 * two


def test_a_copy_of_the_pages_is_seen_in_a_program_that_makes_one() -> None:
    mesh = mesh_of("v5e:1x1")
    pool = jax.ShapeDtypeStruct((65, 4, 64, 128), jnp.bfloat16, sharding=NamedSharding(mesh, P()))
    at = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, P()))

    def write(pool: jax.Array, at: jax.Array) -> jax.Array:
        return pool.at[at].set(jnp.ones((4, 64, 128), jnp.bfloat16))

    size = 65 * 4 * 64 * 128 * 2
    assert large_copies(_program(jax.jit(write).lower(pool, at)), size)
    assert not large_copies(_program(jax.jit(write, donate_argnums=0).lower(pool, at)), size)


def test_a_weight_put_together_from_all_devices_is_seen_in_a_program_that_does_it() -> None:
    mesh = mesh_of("v5e:2x2")
    divided, whole_one = NamedSharding(mesh, P("model", None)), NamedSharding(mesh, P())
    weight = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16, sharding=divided)
    rows = jax.ShapeDtypeStruct((8, 4096), jnp.bfloat16, sharding=whole_one)

    def product(rows: jax.Array, weight: jax.Array) -> jax.Array:
        return rows @ jax.lax.with_sharding_constraint(weight, whole_one)

    def summed(rows: jax.Array, weight: jax.Array) -> jax.Array:
        return rows @ weight

    share = 4096 * 1024 * 2 // 4
    assert _gathered(_program(jax.jit(product).lower(rows, weight)), share)
    assert not _gathered(_program(jax.jit(summed).lower(rows, weight)), share)


def _program(lowered: jax.stages.Lowered) -> HloModule:
    return parse(lowered.compile().as_text() or "")


def _compiled(target: Deployment, chip: Chip) -> tuple[HloModule, float]:
    """The program of a few layers, and what a step of all moves to what none can do without.

    The step chooses its tokens with every penalty, bias, mask and bad word.
    """
    work = Workload(target)
    depths = depths_of(work.anatomy.kinds)
    assert depths is not None, "a model deep enough to be told by some layers"
    kept: list[HloModule] = []
    part = _kept(kept, further_layers(target, depths))
    measured = measure(shallow(target, None, depths.more).program, _BUCKET, part)
    flops = work.flops_ratio(_BUCKET, depths.more)
    deep = whole(measured, Growth(0, 0, 0, 0), depths, flops)
    both = with_choice(deep, measure_choice(target.program, _BUCKET.decodes))
    step = planned_step(work, chip, both, usual_context(target))
    return kept[0], step.compiled_bytes / step.work.bytes


def _small(layers: int) -> Deployment:
    sizes = {"MODEL_DIMS": "256", "HIDDEN_DIMS": "512", "NUM_HEADS": "4", "DIMS_PER_HEAD": "128"}
    overrides = {**sizes, "NUM_LAYERS": str(layers), "ICI_MESH_SHAPE": "null"}
    config = ModelServerConfig(slots=2)
    return deployed("lm_cloud.LmCloudSpmd2BTest", "v5e:1x1", overrides, config)


def _kept(found: list[HloModule], part: Part = lambda _: NOTHING) -> Part:
    """The part, by way of which each program is kept as well."""

    def keep(program: HloModule) -> StepTraffic:
        found.append(program)
        return part(program)

    return keep


def _gathered(program: HloModule, least: int) -> list[Collective]:
    """Exchanges of at least so many bytes per device that only move data."""
    kinds = ("all-gather", "all-to-all", "collective-permute")
    return [each for each in collectives(program) if each.kind in kinds and each.bytes >= least]


def _least_weight(target: Deployment) -> int:
    """Bytes of the smallest matrix of a layer that is divided over devices, put together."""
    layout = target.layout
    divided = [
        leaf.bytes
        for declared in target.blueprint.declarations
        if declared.path.startswith("layers.") and len(declared.shape) > 1
        for leaf in declared.leaves[:1]
        if not layout.sharding(leaf.shape, leaf.axes, leaf.bits).is_fully_replicated
    ]
    return min(divided, default=0)  # one device exchanges nothing


def _pool_bytes(target: Deployment) -> int:
    """Bytes of the keys of one layer on one device."""
    pages = target.memory.kv // target.recipe.cache(1).layers
    return pages // 2
