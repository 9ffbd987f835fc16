"""The key of a start: the same for the same start, another for whatever may change a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import pytest

from model_server.config import ModelServerConfig
from model_server.loading import start_loading
from model_server.loading.deployment import Deployment, deploy
from model_server.loading.memory_plan import FreeMemory
from model_server.loading.start_loading import StartKey
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from sax.types import ModelSpec
from tests.model_server.multihost.staged import LM, TINY

CONFIG = ModelServerConfig(slots=4, page_size=8, max_context=64)


def deployed(config: ModelServerConfig = CONFIG, **overrides: str) -> Deployment:
    recipe: Any = make_recipe(LM, None, TINY | overrides)
    return deploy(recipe, None, layout_of().placed(), config, FreeMemory(2**30, 0))


def key_of(
    made: Deployment, config: Mapping[str, Any] | None = None, path: str = LM, **overrides: str
) -> StartKey:
    spec = ModelSpec(
        model_id="/sax/test/m",
        model_path=path,
        checkpoint="None",
        replicas=1,
        overrides=overrides,
    )
    weights = made.blueprint.declarations
    return start_loading.start_key(spec, config, made.layout, made.program, weights, made.buckets)


@pytest.fixture(scope="module")
def made() -> Deployment:
    return deployed()


def test_the_same_start_has_the_same_key(made: Deployment) -> None:
    assert key_of(made) == key_of(deployed())


def test_other_models_other_flags_and_other_configurations_have_other_files(
    made: Deployment,
) -> None:
    keys = [
        key_of(made),
        key_of(made, path="other"),
        key_of(made, {"rope_theta": 1.0}),
        key_of(made, {"rope_theta": 2.0}),
        key_of(made, LOGITS_SOFTCAP="1.0"),
        key_of(deployed(DTYPE='"bfloat16"')),
        key_of(deployed(SPECULATION='"off"')),
        key_of(deployed(replace(CONFIG, slots=3))),
        key_of(deployed(replace(CONFIG, page_size=16))),
        key_of(deployed(replace(CONFIG, max_context=48))),
    ]
    assert len({key.model for key in keys}) == len(keys)
    assert len({key.whole for key in keys}) == len(keys)


def test_another_machine_setting_or_version_is_another_key_of_the_same_file(
    made: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key_of(made)]
    with monkeypatch.context() as other:
        other.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        keys.append(key_of(made))
    with monkeypatch.context() as other:
        other.setenv("NPROC", "7")
        keys.append(key_of(made))
    for place, value in (
        ("versions", {"sax": "1 (another digest)"}),
        ("_cores", 99),
        ("native.program_key", "avx2, 1 threads"),
    ):
        with monkeypatch.context() as other:
            other.setattr(f"model_server.loading.start_loading.{place}", lambda value=value: value)
            keys.append(key_of(made))
    with jax.default_matmul_precision("float32"):
        keys.append(key_of(made))
    assert len({key.model for key in keys}) == 1
    assert len({key.whole for key in keys}) == len(keys)
    assert keys[0] == key_of(made)
