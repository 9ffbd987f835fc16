"""Models of sounds through the real loader: goldens, batches, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.config import ModelServerConfig
from model_server.loading.audio.audio_loading import AudioBatches
from model_server.loading.audio.loaded_audio import LoadedAudio, SpeechWindow, WrittenWindow
from model_server.loading.loader import ModelLoader, make_loader
from model_server.models.audio import whisper
from model_server.models.registry import make_recipe
from model_server.plan.checkpoint.inspect import inspect
from sax.errors import CheckpointError, InvalidRequest, LoadFailed, MemoryPlanError
from tests.golden.sound_folder import write_case
from tests.model_server.loading.audio.sounds import (
    check_segments,
    first_window,
    golden_of,
    load,
    mels_of,
    teacher_rows,
    written,
)
from tests.model_server.models.refusals import refused_otherwise
from tests.tools.golden.sounds import CASES, thinned

pytestmark = pytest.mark.timeout(600)  # compiles on busy cores

_OTHERS = [pytest.param(name, marks=pytest.mark.nightly) for name in CASES if name != "whisper"]


@pytest.fixture(scope="module")
def loader() -> Iterator[ModelLoader]:
    made = make_loader(ModelServerConfig(queue=7))
    yield made
    made.watch.stop()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a golden case."""
    root = tmp_path_factory.mktemp("whispers")

    def folder(name: str) -> Path:
        made = root / name
        return made if made.exists() else write_case(name, made)

    return folder


@pytest.fixture(scope="module")
def models(
    loader: ModelLoader, folders: Callable[[str], Path]
) -> Iterator[Callable[[str], LoadedAudio]]:
    """The loaded model of a golden case."""
    made: dict[str, LoadedAudio] = {}

    def model(name: str) -> LoadedAudio:
        if name not in made:
            made[name] = load(loader, folders(name), DTYPE="float32", BATCH_SIZE=2)
        return made[name]

    yield model
    for each in made.values():
        each.runner.close()


def window_of(mels: np.ndarray, **changes: Any) -> SpeechWindow:
    window = SpeechWindow(mels, (), None, None, 0.0, 0, 20, Event())
    return window._replace(**changes)


@pytest.mark.parametrize("name", ["whisper", *_OTHERS])
def test_states_and_logits_are_those_of_the_reference(
    models: Callable[[str], LoadedAudio], name: str
) -> None:
    golden, loaded = golden_of(name), models(name)
    mels = mels_of(name, loaded)
    np.testing.assert_allclose(mels[::16], golden["whole"], atol=1e-4)
    runner = loaded.runner
    assert isinstance(runner, AudioBatches)
    leaves, recipe = runner._leaves, runner._programs.recipe  # pyright: ignore[reportPrivateUsage]
    config = recipe.config
    first = first_window(name, loaded)
    np.testing.assert_allclose(thinned(first), golden["features"], atol=1e-4)
    tokens = teacher_rows(name)

    @jax.jit
    def computed(leaves: Any, mels: Any) -> tuple[jax.Array, jax.Array]:
        weights = recipe.blueprint.assemble(leaves).arrays()
        states = whisper.encode(config, weights, mels)
        cross = whisper.crossed(config, weights, states)
        cache = whisper.empty_cache(config, np.float32, 1)
        places = jnp.arange(tokens.shape[1])[None]
        x, _ = whisper.decode(config, weights, cross, cache, tokens, places)
        return states, whisper.logits(weights, x)

    states, logits = computed(leaves, first[None])
    np.testing.assert_allclose(thinned(np.asarray(states)[0]), golden["states"], atol=1e-4)
    np.testing.assert_allclose(np.asarray(logits)[0], golden["logits"], atol=1e-4)


@pytest.mark.parametrize("name", ["whisper", *_OTHERS])
@pytest.mark.parametrize("conditioned", [False, True])
async def test_segments_and_times_of_many_windows_are_those_of_the_reference(
    models: Callable[[str], LoadedAudio], name: str, conditioned: bool
) -> None:
    loaded = models(name)

    def write(window: SpeechWindow) -> WrittenWindow:
        return loaded.runner.run([window])[0]

    found = await written(loaded, name, write, conditioned=conditioned)
    wanted = golden_of(name)["segments_conditioned" if conditioned else "segments_alone"]
    check_segments(found, wanted, len(mels_of(name, loaded)), loaded.tokens.timestamps)


def test_windows_of_many_sounds_are_written_down_together(
    loader: ModelLoader, models: Callable[[str], LoadedAudio]
) -> None:
    loaded = models("whisper")
    mels = mels_of("whisper", loaded)
    german, runner = loaded.tokens.languages["de"], loaded.runner
    windows = [
        window_of(mels[: loaded.frames]),
        window_of(mels[120:180], language=german, previous=(65, 66, 67, 68)),
    ]
    compiled = loader.compiles_while_serving()
    together = runner.run(windows)
    for one, window in zip(together, windows, strict=True):
        (alone,) = runner.run([window])
        assert one.tokens == alone.tokens
        assert one.logprob == pytest.approx(alone.logprob, abs=1e-3)
        assert one.no_speech == pytest.approx(alone.no_speech, abs=1e-5)
    golden = golden_of("whisper")
    assert [each.language for each in together] == [int(golden["language"][0]), german]
    assert loader.compiles_while_serving() == compiled


def test_warm_answers_follow_their_seed(models: Callable[[str], LoadedAudio]) -> None:
    loaded = models("whisper")
    window = window_of(mels_of("whisper", loaded)[: loaded.frames], temperature=1.0)
    seeds = [1, 2, 1]
    found = [loaded.runner.run([window._replace(seed=each)])[0].tokens for each in seeds]
    assert found[0] == found[2] != found[1]
    for tokens in found:
        times = [each for each in tokens if each >= loaded.tokens.timestamps]
        assert times == sorted(times)
        assert not set(tokens) & set(loaded.tokens.suppressed)


def test_a_window_that_nobody_waits_for_ends_early(models: Callable[[str], LoadedAudio]) -> None:
    loaded = models("whisper")
    window = window_of(mels_of("whisper", loaded)[: loaded.frames])
    window.gone.set()
    assert len(loaded.runner.run([window])[0].tokens) <= 1


def test_the_plan_counts_weights_states_and_workspace(
    models: Callable[[str], LoadedAudio],
) -> None:
    loaded = models("whisper")
    parts = loaded.parts
    assert loaded.memory == parts.total
    # Of two windows: keys and values of 50 positions, rounded up to 64, and 48 tokens, 3 layers, 24
    # numbers.
    assert parts.state == 2 * 2 * 3 * (64 + 48) * 24 * 4


def test_overrides_out_of_range_are_refused_by_name(
    loader: ModelLoader, folders: Callable[[str], Path]
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"DTYPE": "int8"}, "DTYPE"),
        ({"BATCH_SIZE": 0}, "BATCH_SIZE"),
        ({"MAX_AUDIO_MINUTES": 1000}, "MAX_AUDIO_MINUTES"),
        ({"ICI_MESH_SHAPE": [2]}, "give three sizes"),
        ({"ICI_MESH_SHAPE": []}, "give three sizes"),
        ({"NUM_STAGES": 2}, "one stage; leave it out, or give its devices by ICI_MESH_SHAPE"),
    ]
    wrong = refused_otherwise(
        lambda changed: load(loader, folders("whisper"), **changed), cases, InvalidRequest
    )
    assert wrong == {}


def test_a_checkpoint_that_is_another_is_refused_in_words(
    loader: ModelLoader, tmp_path: Path
) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("config", {"model_type": "bert"}, "loads checkpoints of model_type whisper"),
        ("config", {"encoder_layers": 3}, "lacks"),
        ("config", {"nonsense": 1}, "nonsense"),
        ("config", {"decoder_attention_heads": 7}, "divides"),
        ("preprocessor_config", {"feature_size": 128}, "feature_size"),
        ("preprocessor_config", {"hop_length": 100}, "hop_length"),
        ("generation_config", {"suppress_tokens": [10**6]}, "suppress_tokens"),
        ("generation_config", {"no_timestamps_token_id": 3}, "no_timestamps_token_id"),
        ("generation_config", {"alignment_heads": [[9, 0]]}, "alignment_heads"),
    ]
    folder = write_case("whisper", tmp_path / "whisper")
    for file, changed, words in cases:
        path = folder / f"{file}.json"
        published = path.read_text()
        path.write_text(json.dumps(json.loads(published) | changed))
        with pytest.raises(CheckpointError, match=words):
            load(loader, folder, "whisper")
        path.write_text(published)


def test_heads_that_follow_the_sound_look_at_it_alone_for_windows_that_ask(
    loader: ModelLoader, models: Callable[[str], LoadedAudio], tmp_path: Path
) -> None:
    assert not models("whisper").times_words
    folder = write_case("whisper", tmp_path / "whisper")
    path = folder / "generation_config.json"
    heads = {"alignment_heads": [[1, 0], [0, 1]]}
    path.write_text(json.dumps(json.loads(path.read_text()) | heads))
    loaded = load(loader, folder, DTYPE="float32", BATCH_SIZE=2)
    assert loaded.times_words
    mels = first_window("whisper", loaded)
    timed, plain = loaded.runner.run([window_of(mels, times=9), window_of(mels)])
    assert plain.looked is None
    said = [token for token in timed.tokens if token < loaded.tokens.end]
    # The start, the language that was heard, no timestamps; the text; the end.
    assert timed.looked.shape == (2, 3 + len(said) + 1, 9)
    np.testing.assert_allclose(timed.looked.sum(-1), 1.0, rtol=1e-5)
    assert timed.looked.std(-1).max() > 1e-4
    alone = loaded.runner.run([window_of(mels, times=9)])[0].looked
    np.testing.assert_allclose(alone, timed.looked, rtol=1e-4)
    loaded.runner.close()


def test_what_cannot_be_loaded_says_why(
    loader: ModelLoader, folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match="takes its sizes from a checkpoint"):
        load(loader, "None", "whisper")
    with pytest.raises(InvalidRequest, match="model of sounds"):
        make_recipe("auto", {"model_type": "whisper"}, {})
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(LoadFailed, match=r"pip install '\.\[media\]'"):
            load(loader, folders("whisper"))


def test_a_mesh_of_more_devices_than_there_are_is_refused(
    loader: ModelLoader, folders: Callable[[str], Path]
) -> None:
    with pytest.raises(MemoryPlanError, match="needs 64 devices; this server has"):
        load(loader, folders("whisper"), ICI_MESH_SHAPE=[1, 8, 8])


def test_a_model_that_does_not_fit_is_refused(
    loader: ModelLoader, folders: Callable[[str], Path]
) -> None:
    tight = ModelLoader(ModelServerConfig(memory_limit_bytes=100_000), loader.watch)
    with pytest.raises(MemoryPlanError):
        load(tight, folders("whisper"), DTYPE="float32", BATCH_SIZE=2)


def test_lower_precision_stays_near(
    loader: ModelLoader, folders: Callable[[str], Path], models: Callable[[str], LoadedAudio]
) -> None:
    exact = models("whisper")
    mels = mels_of("whisper", exact)[: exact.frames]
    near = load(loader, folders("whisper"), DTYPE="bfloat16", BATCH_SIZE=1)
    one, other = (each.runner.run([window_of(mels)])[0] for each in (exact, near))
    assert other.no_speech == pytest.approx(one.no_speech, abs=0.01)
    assert near.parts.weights < exact.parts.weights
    near.runner.close()


def test_inspect_names_it_and_what_is_wrong(folders: Callable[[str], Path], tmp_path: Path) -> None:
    report = inspect(str(folders("whisper")))
    assert (report.family, report.problems) == ("Whisper (sounds)", [])
    assert report.context == 48
    assert report.devices is not None
    assert "divides 3 heads of the encoder and 2 of the decoder" in report.devices
    assert report.memory["bfloat16"] < report.memory["float32"]
    folder = write_case("whisper", tmp_path / "whisper")
    (folder / "tokenizer.json").unlink()
    assert inspect(str(folder)).problems
