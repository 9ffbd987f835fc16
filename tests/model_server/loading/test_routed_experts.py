"""Which experts each token used, as answers tell it: against transformers, and in any company."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from model_server.config import ModelServerConfig
from model_server.engine.parts.routed_experts import ShowRoutes, ToldRoutes
from model_server.engine.request import EngineRequest
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from sax.types import ModelSpec
from tests.demo_model import COMPILE_CACHE
from tests.model_server.engine.drafting.driving import updates
from tests.model_server.loading.loads import quiet
from tests.model_server.loading.test_exactness import (
    CONTEXT,
    PAGE,
    REQUESTS,
    SLOTS,
    FewerPages,
    Knowing,
    guided,
    requests,
)
from tests.model_server.loading.test_recurrent_models import folder_of
from tests.model_server.models.family_cases import config_of, golden_of
from tests.model_server.recorded_answers import RouteRecorder

GOLDEN = Path(__file__).parents[2] / "golden" / "routes"
SHOWN = (ShowRoutes(),)


def spec_of_case(name: str, folder: Path, **overrides: object) -> ModelSpec:
    given = {"DTYPE": "float32", "RETURN_ROUTED_EXPERTS": True} | overrides
    return ModelSpec(
        model_id="/sax/test/routed",
        model_path="auto",
        checkpoint=folder_of(name, folder),
        replicas=1,
        overrides={key: json.dumps(value) for key, value in given.items()},
    )


@contextmanager
def loaded_case(spec: ModelSpec, steps: int = 1) -> Iterator[Loaded]:
    """steps: of decodes, that one launch computes."""
    config = ModelServerConfig(
        jax_cache_dir=str(COMPILE_CACHE),
        slots=SLOTS,
        page_size=PAGE,
        max_context=CONTEXT,
        steps_per_launch=steps,
    )
    loaded = make_loader(config)(spec, quiet)
    assert isinstance(loaded, Loaded)
    with closing(loaded.runner):
        yield loaded


def with_text_sizes(name: str) -> bool:
    """False for a text model within others (Qwen3-VL's), which its own family stands for."""
    return "vocab_size" in config_of(name)


def of_golden(name: str) -> EngineRequest:
    prompt = tuple(golden_of(name)["prompt"].tolist())
    return replace(requests()[0], prompt=prompt, max_tokens=1)


def assert_chosen(found: np.ndarray, name: str) -> None:
    """The same experts in each layer, in whatever order."""
    wanted = np.load(GOLDEN / name / "golden.npz")["experts"]
    np.testing.assert_array_equal(np.sort(found, axis=-1), np.sort(wanted, axis=-1))


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_each_token_is_told_with_the_experts_that_the_reference_chose_in_any_company(
    tmp_path: Path,
) -> None:
    """Chunked, from the cache, preempted, under a grammar, after a replay, with draft tokens."""
    spec = spec_of_case("qwen3_moe", tmp_path)
    wanted = requests()
    with loaded_case(spec) as loaded:
        runner: Any = FewerPages(loaded.runner)
        with closing(RouteRecorder(runner, loaded.step_times)) as recorder:
            (golden,) = recorder.routed([of_golden("qwen3_moe")])
            assert_chosen(golden, "qwen3_moe")
            alone = recorder.routed(wanted)
            plain = recorder.answers(wanted, REQUESTS)  # beside them, and so that pages are cached
            crowded = recorder.routed(wanted, REQUESTS)
            held = [guided(each) for each in wanted]
            kept, again = recorder.routed(held), recorder.routed(held, REQUESTS)
            begun = [
                replace(each, answer=answer.tokens[:1])
                for each, answer in zip(wanted, plain, strict=True)
            ]
            resumed = recorder.routed(begun)
        drafting = Knowing([answer.tokens for answer in plain])
        told = updates(
            loaded.runner, [replace(each, settings=SHOWN) for each in wanted[:2]], drafting
        )
        assert drafting.accepted
    assert_equal(alone, crowded)
    assert_equal(kept, again)
    assert_equal(alone, resumed)
    for of, routes in zip(told, alone, strict=False):
        drafted = ToldRoutes()
        for update in of:
            drafted.add(update.routes)
        np.testing.assert_array_equal(drafted.first(len(routes)), routes)


def assert_equal(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.extended
def test_several_steps_per_launch_tell_of_the_same_experts(tmp_path: Path) -> None:
    """DeepSeek-V3's groups, in a layer of shared experts; a first layer has none."""
    spec = spec_of_case("deepseek_v3", tmp_path)
    wanted = requests()
    with loaded_case(spec) as loaded, closing(RouteRecorder(loaded.runner)) as recorder:
        assert_chosen(recorder.routed([of_golden("deepseek_v3")])[0], "deepseek_v3")
        single = recorder.routed(wanted, SLOTS)
    with loaded_case(spec, steps=4) as loaded, closing(RouteRecorder(loaded.runner)) as recorder:
        assert loaded.runner.limits.steps_per_launch == 4
        assert_equal(single, recorder.routed(wanted, SLOTS))


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*filter(with_text_sizes, sorted(os.listdir(GOLDEN)))])
def test_a_server_tells_the_experts_that_the_reference_chose(name: str, tmp_path: Path) -> None:
    spec = spec_of_case(name, tmp_path)
    with loaded_case(spec) as loaded, closing(RouteRecorder(loaded.runner)) as recorder:
        assert_chosen(recorder.routed([of_golden(name)])[0], name)
