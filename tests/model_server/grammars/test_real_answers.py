"""Answers of a real model, at temperature 1, under random schemas, also where tokens are few."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, EngineRequest
from model_server.engine.types import Sampling
from model_server.grammars.constraint import Constraint
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from sax.types import ModelSpec
from tests.demo_model import demo_model
from tests.model_server.engine.conftest import Inbox
from tests.model_server.grammars.schemas import SCHEMAS
from tests.model_server.grammars.test_grammar_state import closings, matcher_of, of

ORDER = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string", "maxLength": 12},
        "shipping_city": {"enum": ["Amsterdam", "Copenhagen", "San Francisco"]},
        "number_of_items": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["customer_name", "shipping_city", "number_of_items"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    spec = ModelSpec(
        model_id="/sax/test/smollm2",
        model_path="llama",
        checkpoint=str(demo_model()),
        replicas=1,
        overrides={"MAX_CONTEXT": "512"},
    )
    config = ModelServerConfig(jax_cache_dir=".cache/compiled", slots=8)
    made = make_loader(config)(spec, lambda _: None)
    assert isinstance(made, Loaded)
    return made


@pytest.fixture(scope="module")
def served(loaded: Loaded) -> Iterator[tuple[Engine, Inbox]]:
    """Without times of steps, so that every run of forced tokens is one row."""
    inbox = Inbox()
    engine = Engine(loaded.runner, inbox.deliver)
    yield engine, inbox
    engine.close()


def asked(loaded: Loaded, constraint: Constraint, most: int, seed: int) -> EngineRequest:
    assert loaded.grammars is not None
    return EngineRequest(
        prompt=tuple(loaded.tokenizer.encode("Here is the JSON that you asked for:\n")),
        sampling=Sampling(1.0, 0, 1.0, seed=seed, guided=True),
        max_tokens=most,
        stop_ids=loaded.tokenizer.eos_ids,
        grammar=asyncio.run(loaded.grammars.compile(constraint)),
    )


def text_of(loaded: Loaded, tokens: list[int]) -> str:
    kept = [token for token in tokens if token not in loaded.tokenizer.eos_ids]
    return b"".join(map(loaded.tokenizer.token_bytes, kept)).decode()


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,  # minutes find more than these few batches: make it longer to look for some
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    wanted=st.lists(
        st.tuples(SCHEMAS, st.integers(0, 2**32), st.integers(0, 60)), min_size=8, max_size=8
    )
)
def test_every_answer_is_valid_at_any_length_that_holds_one(
    loaded: Loaded,
    served: tuple[Engine, Inbox],
    wanted: list[tuple[dict[str, Any], int, int]],
) -> None:
    engine, inbox = served
    ids: list[int] = []
    for schema, seed, spare in wanted:
        least = closings().find(matcher_of(of(schema)), 400, 5.0)
        assert least is not None
        ids.append(engine.submit(asked(loaded, of(schema), len(least) + spare, seed)))
    for id, (schema, _, _) in zip(ids, wanted, strict=True):
        assert inbox.end(id) in ("complete", "stop", "length")
        jsonschema.validate(json.loads(text_of(loaded, inbox.tokens(id))), schema)


def test_runs_of_forced_tokens_are_scored_as_the_model_scores_the_whole_answer(
    loaded: Loaded, served: tuple[Engine, Inbox]
) -> None:
    engine, inbox = served
    request = asked(loaded, of(ORDER), 100, 5)
    steps = engine.stats().steps
    id = engine.submit(request)
    assert inbox.end(id) == "complete"
    tokens = inbox.tokens(id)
    assert engine.stats().steps - steps < 0.8 * len(tokens)
    jsonschema.validate(json.loads(text_of(loaded, tokens)), ORDER)
    scored = engine.submit(
        EngineRequest(
            prompt=(*request.prompt, *tokens),
            sampling=Sampling(0.0, 0, 1.0, seed=0),
            max_tokens=0,
            stop_ids=frozenset(),
            score_from=len(request.prompt),
        )
    )
    assert inbox.end(scored) == "score"
    alone = inbox.results[scored][-1].target_logprobs
    assert [result.logprob for result in inbox.results[id]] == pytest.approx(alone, abs=0.1)
