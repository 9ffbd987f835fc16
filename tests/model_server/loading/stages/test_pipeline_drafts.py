"""A pipeline whose first stage has a draft model: its draft tokens leave the tokens alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from msgspec.structs import replace as with_changes

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.drafting.drafting import Drafting
from model_server.engine.drafting.drafts import Drafts
from model_server.engine.limits import EngineLimits
from model_server.engine.request import EngineRequest
from model_server.engine.running.ops import DONE, Beginning, Propose
from model_server.engine.step_times import StepTimes
from model_server.engine.types import Sampling
from model_server.loading.compile_watch import CompileWatch
from model_server.loading.deployment import Deployment
from model_server.loading.stages.host_stage import HostStage
from model_server.loading.stages.pipeline import PipelineRunner, StageThread
from model_server.loading.stages.pipeline_loading import build_stage, plan_stage
from model_server.loading.stages.place import place_of
from model_server.models.recipe import DraftRecipe, Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from model_server.multihost.link import LinkClosed
from tests.model_server.engine.drafting.driving import answers, tokens_of
from tests.model_server.multihost.fake_stage import fake_stages
from tests.model_server.multihost.queue_link import ring
from tests.model_server.multihost.staged import LM, SEED, TINY, Hosts

MOST = 4
CONFIG = ModelServerConfig(slots=8, page_size=8, max_context=64, kv_cache_bytes=2**20)
LAYOUT = layout_of().placed()
BUCKETS = (Bucket(8, 0), Bucket(8, 8))
# A step of any size takes as long, so every draft token that may be right is tried.
TIMES = StepTimes.measured(BUCKETS, [1.0] * len(BUCKETS), 32)
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
ONE = Propose((Beginning(slot=0, start=0, token=0, count=1),))
WARM = Sampling(temperature=0.8, top_k=5, top_p=1.0, seed=3)


def drafted_recipe(stages: int) -> Recipe:
    """A model that is its own draft: both draw their weights from one seed."""
    alone: Any = make_recipe(LM, None, TINY)
    speculation = replace(alone.speculation, draft_tokens=MOST, asked=True)
    draft = DraftRecipe(replace(alone, speculation=speculation), None)
    speculation = replace(speculation, draft="itself")
    return replace(alone, stages=stages, speculation=speculation, draft=draft)


def planned(index: int, recipe: Recipe, limits: EngineLimits | None = None) -> Deployment:
    return plan_stage(recipe, None, index, LAYOUT, CONFIG, {}, limits)


class Staged(Hosts):
    """Both stages in this process, on one device; the first one proposes."""

    def __init__(self) -> None:
        recipe = drafted_recipe(2)
        self.limits = planned(0, recipe).limits
        plans = [planned(index, recipe, self.limits) for index in (0, 1)]
        runners = [
            build_stage(plan, None, SEED, link, StageThread(), _silent, buckets=BUCKETS)
            for plan, link in zip(plans, ring(2), strict=True)
        ]
        super().__init__(runners)
        assert Propose not in runners[1].ops
        assert [runner.warmups for runner in runners] == [len(BUCKETS) + 1, len(BUCKETS)]
        for index in range(self.warmups):
            self.warm(index)


def _silent(progress: object) -> None: ...


@pytest.fixture(scope="module")
def staged() -> Iterator[Staged]:
    made = Staged()
    yield made
    made.close()


def asked(first: int, count: int, sampling: Sampling = GREEDY) -> EngineRequest:
    return EngineRequest(
        prompt=tuple((first * 31 + 7 * place) % 97 for place in range(11 + first)),
        sampling=sampling,
        max_tokens=count,
        stop_ids=frozenset(),
    )


def drafted(staged: Staged, requests: list[EngineRequest]) -> tuple[list[list[int]], Drafts]:
    drafts = Drafts(staged, CONFIG.page_size)
    made = answers(staged, requests, Drafting(MOST, staged.limits.decodes, TIMES, drafts))
    return [tokens_of(each) for each in made], drafts


def plain(staged: Staged, requests: list[EngineRequest]) -> list[list[int]]:
    return [tokens_of(each) for each in answers(staged, requests)]


def test_a_model_as_its_own_draft_is_always_right_and_nothing_is_compiled(staged: Staged) -> None:
    """So it saw every token, also those that the last stage chose."""
    assert list(staged.ops[Propose]) == [8]
    watch = CompileWatch()
    made, drafts = drafted(staged, [asked(0, 40)])
    watch.stop()
    assert watch.while_serving == 0
    assert drafts.proposed == drafts.accepted > 8
    assert made == plain(staged, [asked(0, 40)])


def test_answers_of_many_are_the_same(staged: Staged) -> None:
    """Greedy ones and samples, of prompts that share pages."""
    requests = [asked(each, 24, with_changes(WARM, seed=each)) for each in range(3)]
    requests += [with_changes(asked(0, 20), prompt=(*range(20), each)) for each in range(3)]
    made, drafts = drafted(staged, requests)
    assert made == plain(staged, requests)
    assert drafts.accepted > 0


def test_the_draft_model_is_planned_beside_the_first_stage_alone() -> None:
    recipe, without = drafted_recipe(2), replace(drafted_recipe(2), draft=None)
    own = [planned(index, without) for index in (0, 1)]
    both = [planned(index, recipe) for index in (0, 1)]
    draft = both[0].draft
    assert draft is not None
    assert both[1].draft is None
    assert both[0].weight_bytes == own[0].weight_bytes + draft.weight_bytes
    assert both[1].weight_bytes == own[1].weight_bytes
    assert both[0].page_bytes(8) == own[0].page_bytes(8) + draft.page_bytes(8)
    pages = both[0].limits.pages
    assert pages == own[0].limits.pages
    here, there = both[0].parts, own[0].parts
    assert here.weights == there.weights + draft.weight_bytes
    assert here.kv == there.kv + (pages + 1) * draft.page_bytes(8)
    assert here.workspace == there.workspace + draft.workspace(8)
    assert here.least == there.least + here.total - there.total


def test_a_host_of_another_stage_drafts_nothing() -> None:
    """Though it is asked, and warmed, as often as those of the first stage."""
    programs, link = fake_stages(2)[1], ring(2)[1]
    any_link, any_runner = cast(Any, link), cast(Any, programs)
    runner = PipelineRunner(any_runner, link, StageThread())
    stage = HostStage(runner, any_link, place_of(2, 1, 2))
    stage.warm(stage.warmups)
    assert stage.do(ONE) is DONE
    assert Propose not in stage.ops
    stage.close()
    assert programs.runs == 0


@pytest.fixture
def idle() -> Iterator[PipelineRunner]:
    """A first stage that runs nothing."""
    fake: Any = fake_stages(2)[0]
    fake.ops = {Propose: {8: 1.0}}
    fake.prepared = lambda op: lambda: DONE
    made = PipelineRunner(fake, ring(2)[0], StageThread())
    yield made
    made.close()


def test_draft_tokens_of_a_pipeline_that_stopped_end_with_its_failure(idle: PipelineRunner) -> None:
    idle._fail(failure := OSError("a device is lost"))
    with pytest.raises(OSError, match="a device is lost") as caught:
        idle.do(ONE).result()
    assert caught.value is failure


def test_draft_tokens_of_a_closed_pipeline_end(idle: PipelineRunner) -> None:
    idle.close()
    with pytest.raises(LinkClosed):
        idle.do(ONE).result()
