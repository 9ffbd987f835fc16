"""The demo model as a model server loads it, and what benchmarks ask of its engine."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np

from model_server.config import ModelServerConfig
from model_server.engine.engine import EngineRequest
from model_server.engine.types import Sampling
from model_server.loading.compile_watch import CompileWatch
from model_server.loading.loaded import Loaded
from model_server.loading.loader import ModelLoader
from sax.types import ModelSpec
from tests.demo_model import demo_model

COMPILED = ".cache/compiled"
_watch = functools.cache(CompileWatch)  # one per process: two would count each other's loads
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


def spec_of(
    name: str = "smollm2", path: str = "llama", checkpoint: str = "", **overrides: object
) -> ModelSpec:
    """A publication of the demo model, or of another checkpoint."""
    return ModelSpec(
        model_id=f"/sax/bench/{name}",
        model_path=path,
        checkpoint=checkpoint or str(demo_model()),
        replicas=1,
        overrides={key: json.dumps(value) for key, value in overrides.items()},
    )


def load_demo(config: ModelServerConfig | None = None, **overrides: Any) -> Loaded:
    """Load the demo model; by default as a model server without flags would."""
    loader = ModelLoader(config or ModelServerConfig(jax_cache_dir=COMPILED), _watch())
    loaded = loader(spec_of(**overrides), lambda _: None)
    assert isinstance(loaded, Loaded)
    return loaded


def random_prompt(rng: np.random.Generator, tokens: int) -> tuple[int, ...]:
    return tuple(rng.integers(3, 40000, tokens).tolist())


def request(
    prompt: tuple[int, ...], answer: int, sampling: Sampling = GREEDY, **more: Any
) -> EngineRequest:
    """A request for an answer of so many tokens."""
    return EngineRequest(
        prompt=prompt, sampling=sampling, max_tokens=answer, stop_ids=frozenset(), **more
    )
