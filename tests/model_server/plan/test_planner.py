"""From what a compiler measured to a plan, over real slices; compiles nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import pytest

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.running.draft_program import DraftProgram
from model_server.loading.deployment import Deployment
from model_server.plan import measuring
from model_server.plan.compiled import Measured, OutOfMemory
from model_server.plan.hlo.traffic import HbmBytes, StepTraffic
from model_server.plan.model_plan import Memory, ModelPlan
from model_server.plan.planner import PlanRequest, make_plan, usual_context
from model_server.plan.slices import CHIPS
from model_server.plan.work import Workload
from sax.errors import InvalidRequest, MemoryPlanError
from tests.model_server.checkpoints.tiny_folder import CONFIG
from tests.model_server.plan.measures import deployed, measured
from tests.model_server.plan.precompile.test_making import SMALL
from tests.model_server.tpu_compiler import needs_compiler

pytestmark = needs_compiler
_175B = "lm_cloud.LmCloudSpmd175B32Test"
_GIB = 2**30


def _planned(model: str, topology: str) -> ModelPlan:
    request = PlanRequest(
        model=model, topology=topology, config=ModelServerConfig(), overrides={}, is_full=True
    )
    return make_plan(request, lambda done: None)


def test_the_175b_fits_its_slice_with_room_for_every_slot() -> None:
    """The issue's own case: weights in int8, 16 GB a chip, KV pages beside them."""
    made = deployed(_175B, "v5e:4x8", {})
    assert made.weight_bytes == pytest.approx(174.3e9 / 32, rel=0.01)
    assert made.memory.total < CHIPS["v5e"].usable
    assert made.limits.pages * made.limits.page_size >= 32 * made.limits.max_context


def placed(model: str, context: int) -> Deployment:
    overrides = {"QUANTIZE": '"int8"', "MAX_CONTEXT": str(context)}
    return deployed(model, "v5p:2x2x4", overrides)


@pytest.mark.nightly
def test_where_nothing_is_chosen_a_longer_context_takes_no_memory_from_the_pages() -> None:
    short, long = (placed("deepseek-ai/DeepSeek-V3", context) for context in (4096, 8192))
    assert short.memory.kv == long.memory.kv


def test_scores_of_chosen_tokens_have_memory_that_grows_with_the_context() -> None:
    short, long = (placed("deepseek-ai/DeepSeek-V3.2", context) for context in (4096, 8192))
    tokens = long.limits.token_budget
    assert long.choice_bytes(32, 8192) == 8192 * tokens * 4 * 12
    less = short.memory.kv - long.memory.kv
    assert less == pytest.approx(4096 * tokens * 4 * 12, abs=short.page_bytes(64))


def test_a_plan_tells_memory_speeds_and_what_the_program_moves_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = deployed("Llama-3-8B", "v5e:2x4", {})
    context = usual_context(made)
    work = Workload(made).of(made.buckets[0], context)
    twice = StepTraffic(HbmBytes(2 * work.weights, 0, 0, 0), {}, 0)

    def measure(program: Any, bucket: Bucket, part: Any = None) -> Measured:
        return measured(bucket, arguments=made.memory.kv + work.weights, traffic=twice)

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(measuring, "measure_choice", lambda *_: measured(made.buckets[0]))
    plan = _planned("Llama-3-8B", "v5e:2x4")
    assert plan.fits
    assert plan.context == context == 2048
    assert [each.batch for each in plan.decoding] == [2, 8, 16, 32]
    first = plan.decoding[0]
    moved = 2 * work.weights + work.cache
    assert first.tokens_per_second == pytest.approx(2 / (moved / 819e9))
    assert first.per_chip == pytest.approx(first.tokens_per_second / 8)
    assert plan.buckets[0].efficiency == pytest.approx(moved / work.bytes)
    assert [each.steps for each in plan.first_token] == [1, 1, 8]
    assert plan.memory is not None
    assert plan.memory.kv_tokens == made.limits.pages * 64
    spelled = json.loads(json.dumps(plan.as_value()))
    assert spelled["predicted"]["decoding"][0]["batch"] == 2
    assert spelled["buckets"][0]["predicted"]["bound"] == "HBM"


def test_a_plan_counts_the_memory_of_the_passes_beside_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "measure", lambda program, bucket, part=None: measured(bucket))
    monkeypatch.setattr(measuring, "measure_choice", lambda *_: measured(Bucket(2, 0)))

    def memory(**tasks: str) -> Memory:
        request = PlanRequest(
            model="lm_cloud.LmCloudSpmd2BTest",
            topology="v5e:1x1",
            config=ModelServerConfig(slots=2, kv_cache_bytes=2**24),
            overrides={**SMALL, "ICI_MESH_SHAPE": "[1, 1, 1]", **tasks},
            is_full=True,
        )
        found = make_plan(request, lambda done: None).memory
        assert found is not None
        return found

    alone, beside = memory(), memory(TASKS='["generate", "embed"]', PASS_CONTEXT="32")
    vectors = 4 * 16 * int(SMALL["MODEL_DIMS"])  # of the largest batch
    assert beside.temporaries >= alone.temporaries + vectors
    assert beside.kv_pages_free < alone.kv_pages_free


SMALL_DRAFT = {
    "SPECULATION": '"draft"',
    "DRAFT_MODEL": '"Llama-3.2-1B"',
    "ICI_MESH_SHAPE": "[1, 1, 1]",
}


def test_a_draft_model_is_counted_beside_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights, its pages, its part of each step, and its draft tokens."""
    steps = {"arguments": 10 * _GIB, "temporaries": 100, "code": 5}
    follows = {"arguments": 2 * _GIB, "temporaries": 50, "code": 3, "flops": 1e12}
    drafting = {"temporaries": 700, "code": 2, "traffic": StepTraffic(HbmBytes(8, 0, 0, 0), {}, 0)}

    def measure(program: Any, bucket: Bucket, part: Any = None) -> Measured:
        return measured(bucket, **(follows if isinstance(program, DraftProgram) else steps))

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(measuring, "measure_choice", lambda *_: measured(Bucket(2, 0), code=0))
    monkeypatch.setattr(
        measuring, "measure_draft_tokens", lambda _, rows: measured(Bucket(rows, 0), **drafting)
    )

    def plan(**overrides: str) -> ModelPlan:
        request = PlanRequest(
            model="Llama-3.2-3B",
            topology="v5e:1x1",
            config=ModelServerConfig(kv_cache_bytes=2**30, max_context=4096),
            overrides={"ICI_MESH_SHAPE": "[1, 1, 1]", **overrides},
            is_full=True,
        )
        return make_plan(request, lambda done: None)

    alone, made = plan(SPECULATION='"ngram"'), plan(**SMALL_DRAFT)
    assert alone.draft is None
    assert alone.memory is not None
    assert made.memory is not None
    assert made.draft is not None
    assert made.draft.parameters == pytest.approx(1.24e9, rel=0.01)
    assert made.memory.weights == alone.memory.weights + made.draft.weights
    assert 0 < made.draft.kv < made.memory.kv <= 2**30
    assert made.memory.kv_pages < alone.memory.kv_pages
    assert made.memory.arguments == alone.memory.arguments + follows["arguments"]
    assert made.memory.temporaries == drafting["temporaries"]
    sizes = sum(not bucket.blocks for bucket in made.buckets)
    assert made.memory.code == alone.memory.code + 3 * len(made.buckets) + 2 * sizes
    assert [each.rows for each in made.draft.draft_tokens] == [each.batch for each in made.decoding]
    assert all(each.seconds > 0 for each in made.draft.draft_tokens)
    both = zip(made.buckets, alone.buckets, strict=True)
    assert all(one.seconds > other.seconds and one.bytes > other.bytes for one, other in both)
    spelled = json.loads(json.dumps(made.as_value()))
    assert spelled["predicted"]["guesses"][0]["rows"] == 2
    assert spelled["draft"]["model"] == "Llama-3.2-1B"


def test_a_draft_model_of_fewer_tokens_than_the_model_serves_is_refused(tmp_path: Path) -> None:
    sizes = {"max_position_embeddings": 4096, "num_hidden_layers": 1}
    draft = tmp_path / "config.json"
    draft.write_text(json.dumps({**CONFIG, **sizes}))
    request = PlanRequest(
        model="Llama-3.2-3B",
        topology="v5e:1x1",
        config=ModelServerConfig(kv_cache_bytes=2**31, max_context=8192, slots=2),
        overrides={**SMALL_DRAFT, "DRAFT_MODEL": f'"{draft}"'},
    )
    with pytest.raises(InvalidRequest, match="holds 4096 tokens and the model is to serve 8192"):
        make_plan(request, lambda done: None)


def test_programs_that_leave_too_little_for_the_pages_are_told_with_a_pool_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = deployed("Llama-3-8B", "v5e:2x4", {})

    def measure(program: Any, bucket: Bucket, part: Any = None) -> Measured:
        weights = made.weight_bytes
        return measured(bucket, arguments=made.memory.kv + weights, temporaries=6 * _GIB)

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(measuring, "measure_choice", lambda *_: measured(made.buckets[0]))
    plan = _planned("Llama-3-8B", "v5e:2x4")
    assert not plan.fits
    assert "does not fit v5e:2x4 as planned: weights," in (plan.problem or "")
    assert "6.00 GiB of it temporaries; 15.75 GiB is available" in (plan.problem or "")
    (advice,) = plan.advice
    assert advice.startswith("--kv_cache_bytes ")
    assert plan.buckets
    assert plan.memory is not None
    assert plan.memory.used > plan.memory.limit


def test_a_compiler_without_memory_is_told_with_the_pages_that_it_would_have_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = deployed("Llama-3-8B", "v5e:2x4", {})
    page, available = made.page_bytes(64), 12 * _GIB

    def measure(program: Any, bucket: Bucket, part: Any = None) -> Measured:
        used = 4 * _GIB + jax.tree.leaves(program.pages)[0].shape[0] * page
        if used > available:
            raise OutOfMemory(bucket, used, available)
        return measured(bucket, arguments=used, temporaries=0, outputs=0, code=0)

    monkeypatch.setattr(measuring, "measure", measure)
    plan = _planned("Llama-3-8B", "v5e:2x4")
    assert not plan.fits
    assert "the compiler needs" in (plan.problem or "")
    (advice,) = plan.advice
    flag, size = advice.partition(":")[0].split()
    assert flag == "--kv_cache_bytes"
    assert 0.97 * 8 * _GIB < int(size) < 8 * _GIB


def test_a_mesh_larger_than_the_slice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"needs 32 devices and v5e:4x4 has 16.*\[1,1,16\]"):
        deployed(_175B, "v5e:4x4", {})


def test_what_does_not_fit_is_refused_as_a_load_would_refuse_it() -> None:
    with pytest.raises(MemoryPlanError, match="does not fit"):
        deployed("Llama-3-70B", "v5e:2x2", {})
