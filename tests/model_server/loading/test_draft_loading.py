"""A draft model is loaded under its model's plan, or refused by name."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model_server.config import ModelServerConfig
from model_server.disaggregation.contract import check_same
from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.running.ops import Propose
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import ModelLoader, make_loader
from sax.errors import CheckpointError, InvalidRequest, MemoryPlanError
from sax.types import ModelSpec
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.loads import spec_of as publication
from tests.model_server.tiny_bert import tiny_bert

CONFIG = ModelServerConfig(slots=2, page_size=16, max_context=64)
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)


def spec_of(folder: Path, **overrides: str) -> ModelSpec:
    return publication(folder, **{"DTYPE": '"float32"', **overrides})


def drafted_by(folder: Path, draft: object, **overrides: str) -> ModelSpec:
    wanted = {"SPECULATION": '"draft"', "DRAFT_MODEL": f'"{draft}"', "MAX_GUESSES": "4"}
    return spec_of(folder, **{**wanted, **overrides})


@pytest.fixture(scope="module")
def loader() -> ModelLoader:
    return make_loader(CONFIG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="module")
def plain(loader: ModelLoader, folder: Path) -> Iterator[Loaded]:
    made = loader(spec_of(folder, SPECULATION='"off"'), lambda _: None)
    assert isinstance(made, Loaded)
    with closing(made.runner):
        yield made


@pytest.fixture(scope="module")
def drafted(loader: ModelLoader, folder: Path) -> Iterator[Loaded]:
    """The model as its own draft."""
    made = loader(drafted_by(folder, folder), lambda _: None)
    assert isinstance(made, Loaded)
    with closing(made.runner):
        yield made


def answer(engine: Engine, updates: queue.Queue[SequenceUpdate], prompt: range) -> list[int]:
    """Forty tokens."""
    engine.submit(
        EngineRequest(prompt=tuple(prompt), sampling=GREEDY, max_tokens=40, stop_ids=frozenset())
    )
    tokens: list[int] = []
    while True:
        update = updates.get(timeout=60)
        assert update.error is None
        assert update.result.token is not None
        tokens.append(update.result.token)
        if update.finish:
            return tokens


def answers(loaded: Loaded) -> tuple[list[list[int]], int, int]:
    """Answers to three prompts, in turns, and how many draft tokens were tried and right."""
    updates: queue.Queue[SequenceUpdate] = queue.Queue()

    def keep(batch: list[SequenceUpdate]) -> None:
        for update in batch:
            updates.put(update)

    engine = Engine(loaded.runner, keep)
    with closing(engine):
        made = [answer(engine, updates, range(first, first + 9)) for first in (3, 30, 60)]
        stats = engine.stats()
    return made, stats.draft_tokens, stats.draft_tokens_accepted


def test_both_models_serve_without_compiling_and_answers_are_the_same(
    loader: ModelLoader, plain: Loaded, drafted: Loaded
) -> None:
    """Steps are taken to cost the same, so draft tokens are tried whenever they may be right."""
    assert drafted.runner.ops[Propose]
    before = loader.compiles_while_serving()
    made, tried, right = answers(drafted)
    assert made == answers(plain)[0]
    assert tried > 30
    assert right > 30
    assert loader.compiles_while_serving() == before


def test_weights_and_pages_of_both_are_in_the_plan(plain: Loaded, drafted: Loaded) -> None:
    """A model that is its own draft takes twice the weights, and pages of twice the bytes."""
    assert drafted.parts.weights == 2 * plain.parts.weights
    assert drafted.parts.kv == 2 * plain.parts.kv
    assert drafted.parts.tokens == plain.parts.tokens
    assert drafted.parts.total == drafted.memory


def test_a_model_that_does_not_fit_with_its_draft_model_is_refused(
    folder: Path, plain: Loaded
) -> None:
    tight = make_loader(replace(CONFIG, memory_limit_bytes=plain.memory + 2**16))
    with pytest.raises(MemoryPlanError, match="does not fit"):
        tight(drafted_by(folder, folder), lambda _: None)


@pytest.mark.nightly
def test_rows_of_embedding_beyond_the_tokens_may_differ(
    loader: ModelLoader, folder: Path, tmp_path: Path
) -> None:
    other = write_tiny(tmp_path / "other", vocab_size=300)
    loaded = loader(drafted_by(folder, other), lambda _: None)
    assert isinstance(loaded, Loaded)
    assert len(answers(loaded)[0]) == 3


def without_merge(folder: Path) -> Path:
    """A model with one token less."""
    return _changed(folder, lambda model: (model["merges"].pop(), model["vocab"].popitem()))


def with_tokens_exchanged(folder: Path) -> Path:
    def exchange(model: dict[str, Any]) -> None:
        vocab = model["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]

    return _changed(folder, exchange)


def of_32_tokens(folder: Path) -> Path:
    return write_tiny(folder, max_position_embeddings=32)


def bert(folder: Path) -> Path:
    folder.mkdir()
    return tiny_bert(folder)


def _changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    file = write_tiny(folder) / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    change(tokenizer["model"])
    file.write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize(
    ("made", "complaint", "param"),
    [
        (without_merge, "has 261 tokens and the model 262", "DRAFT_MODEL"),
        (with_tokens_exchanged, "its token [0-9]+ is 'b' and the model's 'a'", "DRAFT_MODEL"),
        (of_32_tokens, "DRAFT_MODEL holds 32 tokens .* serve 64: set MAX_CONTEXT", "MAX_CONTEXT"),
        (bert, "makes no tokens: name a language model", "DRAFT_MODEL"),
    ],
)
def test_a_draft_model_that_does_not_go_with_the_model_is_refused(
    loader: ModelLoader,
    folder: Path,
    tmp_path: Path,
    made: Callable[[Path], Path],
    complaint: str,
    param: str,
) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as caught:
        loader(drafted_by(folder, made(tmp_path / "other")), lambda _: None)
    assert caught.value.param == f"overrides.{param}"


@pytest.mark.parametrize("named", ["llama", "lora", "bert"])
def test_a_path_without_sizes_of_its_own_is_refused(
    loader: ModelLoader, folder: Path, named: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"DRAFT_MODEL: {named} ") as caught:
        loader(drafted_by(folder, named), lambda _: None)
    assert caught.value.param == "overrides.DRAFT_MODEL"


def test_a_scheme_that_there_is_not_is_refused(loader: ModelLoader, folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="DRAFT_MODEL: QUANTIZE .*int3") as caught:
        loader(drafted_by(folder, folder, DRAFT_QUANTIZE='"int3"'), lambda _: None)
    assert caught.value.param == "overrides.DRAFT_MODEL"


def test_a_missing_draft_model_is_named(loader: ModelLoader, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="DRAFT_MODEL .*nowhere") as caught:
        loader(drafted_by(folder, tmp_path / "nowhere"), lambda _: None)
    assert caught.value.param == "overrides.DRAFT_MODEL"


def test_a_draft_model_outside_the_roots_is_refused(folder: Path, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other")
    rooted = make_loader(replace(CONFIG, checkpoint_roots=(str(folder.parent),)))
    with pytest.raises(CheckpointError, match="not below --checkpoint_roots") as caught:
        rooted(drafted_by(folder, other), lambda _: None)
    assert caught.value.param == "overrides.DRAFT_MODEL"


def test_a_server_that_hands_prompts_over_moves_the_pages_of_both(folder: Path) -> None:
    """And says so to the others, which refuse to exchange pages with a server without."""
    loader = make_loader(replace(CONFIG, prefill=True, kv_cache_bytes=2**20))
    alone = loader(spec_of(folder), lambda _: None)
    drafted = loader(drafted_by(folder, folder), lambda _: None)
    assert isinstance(alone, Loaded)
    assert isinstance(drafted, Loaded)
    with closing(alone.runner), closing(drafted.runner):
        one, two = alone.disaggregation, drafted.disaggregation
        assert one is not None
        assert two is not None
        assert drafted.runner.ops[Propose]
        assert two.page_bytes == 2 * one.page_bytes
        heads = f"{two.contract.kv_heads} KV heads of {two.contract.key_dim}"
        assert heads in two.contract.draft
        with pytest.raises(InvalidRequest, match="pages of the draft model: none here"):
            check_same(one.contract, two.contract)
