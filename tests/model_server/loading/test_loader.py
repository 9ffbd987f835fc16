"""The real loader on tiny checkpoints: plan, weights, compiled buckets, a running engine."""

from __future__ import annotations

import queue
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.types import Sampling
from model_server.kernels.cpu import native
from model_server.loading.language import LanguageModels
from model_server.loading.loader import ModelLoader, make_loader
from model_server.loading.memory_plan import Devices
from model_server.text.chat_template import ChatTemplate
from sax.errors import (
    CheckpointError,
    InvalidRequest,
    LoadFailed,
    MemoryPlanError,
    ModelPathNotFound,
)
from sax.format import human_bytes as human
from sax.types import ModelSpec
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.loads import quiet

PATH = "lm_cloud.LmCloudSpmd2BTest"
SHRUNK = {
    "NUM_LAYERS": "1",
    "MODEL_DIMS": "16",
    "HIDDEN_DIMS": "32",
    "NUM_HEADS": "2",
    "DIMS_PER_HEAD": "8",
    "VOCAB_SIZE": "300",
}
CONFIG = ModelServerConfig(slots=2, page_size=16)


def spec(**changes: object) -> ModelSpec:
    values: dict[str, object] = {
        "model_id": "/sax/test/tiny",
        "model_path": f"pax.lm.params.{PATH}",
        "checkpoint": "None",
        "replicas": 1,
        "overrides": SHRUNK,
    }
    return ModelSpec(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def loader() -> ModelLoader:
    return make_loader(CONFIG)


def answer(
    engine: Engine, updates: queue.Queue[SequenceUpdate], prompt: tuple[int, ...]
) -> list[int]:
    greedy = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
    engine.submit(EngineRequest(prompt=prompt, sampling=greedy, max_tokens=6, stop_ids=frozenset()))
    tokens: list[int] = []
    while True:
        update = updates.get(timeout=60)
        assert update.error is None
        assert update.result.token is not None
        tokens.append(update.result.token)
        if update.finish:
            return tokens


def test_a_loaded_model_serves_without_compiling(loader: ModelLoader) -> None:
    phases: list[str] = []
    before = loader.compiles_while_serving()  # what the load compiles is expected, in any thread
    loaded = loader(spec(), lambda progress: phases.append(progress.phase))
    assert loaded.kernels.startswith(native.described())
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    engine = Engine(loaded.runner, lambda batch: [updates.put(update) for update in batch] and None)
    try:
        short = answer(engine, updates, (5, 6, 7))
        long = answer(engine, updates, tuple(range(100)))
        assert answer(engine, updates, (5, 6, 7)) == short
        assert len(long) == 6
        assert loader.compiles_while_serving() == before
    finally:
        engine.close()
    assert list(dict.fromkeys(phases)) == [
        "starting",
        "drawing weights",
        "compiling bucket",
        "running bucket",
    ]


def test_prompts_longer_than_the_largest_bucket_are_served(loader: ModelLoader) -> None:
    # With 32 idle slots the token budget alone would let one step have more prompt blocks than
    # any bucket holds.
    loaded = loader(spec(overrides=SHRUNK | {"NUM_CACHE_SLOTS": "32"}), quiet)
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    engine = Engine(loaded.runner, lambda batch: [updates.put(update) for update in batch] and None)
    try:
        assert len(answer(engine, updates, tuple(range(280)))) == 6
    finally:
        engine.close()


def test_a_score_with_an_end_token_needs_to_know_which(loader: ModelLoader) -> None:
    with pytest.raises(InvalidRequest, match="the tokenizer has 0: say which with EOS_ID"):
        loader(spec(overrides=SHRUNK | {"SCORING_INCLUDE_EOS_SCORE": "true"}), quiet)


def test_a_loaded_model_replies_as_its_class_says(loader: ModelLoader) -> None:
    said = {"SCORE_ONLY": "true", "SCORING_INCLUDE_EOS_SCORE": "true", "EOS_ID": "7"}
    loaded = loader(spec(overrides=SHRUNK | said), quiet)
    loaded.runner.close()
    assert (loaded.methods, loaded.replies.ending) == (("lm.score",), (7,))


def test_stages_want_as_many_groups_of_hosts(loader: ModelLoader) -> None:
    with pytest.raises(InvalidRequest, match="NUM_STAGES is 2, .* 1 host, which do not") as caught:
        loader(spec(overrides=SHRUNK | {"NUM_LAYERS": "2", "NUM_STAGES": "2"}), quiet)
    assert caught.value.param == "overrides.NUM_STAGES"


@pytest.mark.nightly
def test_the_same_name_gets_the_same_random_weights(loader: ModelLoader) -> None:
    tokens = []
    for _ in range(2):
        updates: queue.Queue[SequenceUpdate] = queue.Queue()
        engine = Engine(
            loader(spec(), quiet).runner,
            lambda batch, to=updates: [to.put(update) for update in batch] and None,
        )
        tokens.append(answer(engine, updates, (1, 2, 3)))
        engine.close()
    assert tokens[0] == tokens[1]


@pytest.mark.nightly
def test_a_closed_models_memory_is_free_again(loader: ModelLoader) -> None:
    loaded = loader(spec(), quiet)
    limited = ModelServerConfig(slots=2, page_size=16, memory_limit_bytes=loaded.memory * 3 // 2)
    loaded.runner.close()
    tight = ModelLoader(limited, loader.watch)
    first = tight(spec(), quiet)
    with pytest.raises(MemoryPlanError, match="in use by other models"):
        tight(spec(model_id="/sax/test/second"), quiet)
    first.runner.close()
    tight(spec(model_id="/sax/test/second"), quiet).runner.close()


def test_a_model_too_large_is_refused_before_it_is_read(loader: ModelLoader) -> None:
    here = {"ICI_MESH_SHAPE": "[1, 1, 1]", "QUANTIZE": "null"}
    huge = spec(model_path="pax.lm.params.lm_cloud.LmCloudSpmd175B32Test", overrides=here)
    with pytest.raises(MemoryPlanError, match=r"weights 32\d\.\d+ GiB"):
        loader(huge, quiet)


def test_a_mesh_larger_than_the_server_is_refused_with_what_would_do(loader: ModelLoader) -> None:
    spread = spec(model_path="pax.lm.params.lm_cloud.LmCloudSpmd175B32Test", overrides={})
    wanted = r"needs 32 devices with 5\.\d+ GiB each \(17\d\.\d+ GiB in all\); this server has"
    with pytest.raises(MemoryPlanError, match=wanted) as caught:
        loader(spread, quiet)
    need = caught.value.need
    assert need is not None
    assert need.devices == 32
    assert need.memory_each > 5 * 2**30
    assert 170e9 < need.weights < 180e9  # one byte for each of its 175 billion weights
    assert human(need.memory) in caught.value.text


def test_a_mesh_of_another_kind_is_no_matter_of_room(loader: ModelLoader) -> None:
    with pytest.raises(InvalidRequest, match="three sizes"):
        loader(spec(overrides={**SHRUNK, "ICI_MESH_SHAPE": "[1, 64]"}), quiet)


def test_a_model_on_any_number_of_devices_needs_its_weights_once(loader: ModelLoader) -> None:
    anywhere = spec(overrides={**SHRUNK, "ICI_MESH_SHAPE": "null"})
    tight = replace(CONFIG, memory_limit_bytes=2**20)
    with pytest.raises(MemoryPlanError) as caught:
        ModelLoader(tight, loader.watch)(anywhere, quiet)
    need = caught.value.need
    assert need is not None
    assert need.devices == 0
    assert 0 < need.weights < need.memory
    enough = replace(CONFIG, memory_limit_bytes=need.memory, kv_cache_bytes=2**30)
    with pytest.raises(MemoryPlanError, match="lower --kv_cache_bytes") as caught:
        ModelLoader(enough, loader.watch)(anywhere, quiet)
    assert caught.value.need is None  # with less of a cache it would fit


def test_a_cache_that_the_flags_make_too_small_needs_no_other_server(loader: ModelLoader) -> None:
    flagged = replace(CONFIG, kv_cache_bytes=1)
    with pytest.raises(MemoryPlanError, match="--kv_cache_bytes") as caught:
        ModelLoader(flagged, loader.watch)(spec(), quiet)
    assert caught.value.need is None


def test_a_server_tells_its_devices_and_what_they_hold(loader: ModelLoader) -> None:
    told = ModelLoader(ModelServerConfig(memory_limit_bytes=2**30), loader.watch).devices()
    assert told == Devices(len(jax.devices()), 2**30)


def test_an_unknown_path_is_named_before_a_missing_checkpoint(loader: ModelLoader) -> None:
    with pytest.raises(ModelPathNotFound, match="nothing"):
        loader(spec(model_path="nothing", checkpoint="/not/there"), quiet)


def test_a_missing_checkpoint_is_named(loader: ModelLoader, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        loader(spec(model_path="llama", checkpoint=str(tmp_path / "nowhere")), quiet)


def test_a_tokenizer_of_another_model_is_refused(loader: ModelLoader, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", vocab_size=200)
    with pytest.raises(CheckpointError, match=r"tiny: .* ids up to 261, its model 200 rows"):
        loader(spec(model_path="llama", checkpoint=str(folder), overrides={}), quiet)


def test_a_query_format_that_needs_a_template_says_so(loader: ModelLoader) -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        loader(spec(overrides=SHRUNK | {"QUERY_FORMAT": '"chat"'}), quiet)


def test_queries_are_chats_where_there_is_a_template_unless_told_otherwise() -> None:
    from model_server.loading.language import chat_queries
    from model_server.models.registry import make_recipe

    template = ChatTemplate("{{ messages[0].content }}", bos_token="", eos_token="")
    config = {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 9,
    }
    default = make_recipe("llama", config, {})
    raw = make_recipe("llama", config, {"QUERY_FORMAT": '"raw"'})
    assert chat_queries(default, template)
    assert not chat_queries(default, None)
    assert not chat_queries(raw, template)


@pytest.mark.parametrize(
    "held",
    [
        "int8",
        *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("int4", "int4:8", "float8")),
    ],
)
def test_quantised_weights_answer_through_compiled_buckets(loader: ModelLoader, held: str) -> None:
    loaded = loader(spec(overrides=SHRUNK | {"QUANTIZE": f'"{held}"'}), quiet)
    updates: queue.Queue[SequenceUpdate] = queue.Queue()
    engine = Engine(loaded.runner, lambda batch: [updates.put(update) for update in batch])
    try:
        assert len(answer(engine, updates, (5, 6, 7))) == 6
    finally:
        engine.close()


def test_models_that_would_start_their_programs_in_different_orders_are_not_held_at_once(
    loader: ModelLoader,
) -> None:
    first = SimpleNamespace(closed=False)
    models = loader.context.kind(LanguageModels)
    models._orders.append((first, "whole on all hosts"))
    models._check_order("whole on all hosts")
    models._check_order(None)  # on one host alone
    with pytest.raises(LoadFailed, match="in stages of several hosts cannot be beside one"):
        models._check_order("in stages of several hosts")
    first.closed = True
    models._check_order("in stages of several hosts")


def test_a_checkpoint_outside_the_roots_is_refused(tmp_path: Path) -> None:
    folder = str(write_tiny(tmp_path / "tiny"))
    other = make_loader(replace(CONFIG, checkpoint_roots=(str(tmp_path / "other"),)))
    with pytest.raises(CheckpointError, match="not below --checkpoint_roots") as caught:
        other(spec(model_path="auto", checkpoint=folder, overrides={}), quiet)
    assert caught.value.param == "checkpoint"


def test_a_bucket_that_never_answers_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        hasty = make_loader(replace(CONFIG, open_seconds=0.2))
        with pytest.raises(
            CheckpointError, match=r"s3://bucket/model could not be opened within 0\.2 s"
        ):
            hasty(spec(model_path="auto", checkpoint="s3://bucket/model", overrides={}), quiet)


def test_a_chat_template_that_runs_away_ends_the_load_by_name(
    loader: ModelLoader, tmp_path: Path
) -> None:
    folder = write_tiny(tmp_path / "tiny")
    (folder / "chat_template.jinja").write_text("{{ messages | length | round(-100000000) }}")
    with pytest.raises(CheckpointError, match="tiny: the chat template .* was stopped"):
        loader(spec(model_path="auto", checkpoint=str(folder), overrides={}), quiet)
