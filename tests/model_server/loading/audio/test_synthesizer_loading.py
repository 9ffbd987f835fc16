"""Models that speak through the real loader: goldens, seeds, batches, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.config import ModelServerConfig
from model_server.loading.audio.loaded_synthesizer import (
    LoadedSynthesizer,
    SpeechPiece,
    SpokenPiece,
    TooLong,
)
from model_server.loading.audio.synthesizer_loading import drawn
from model_server.loading.loader import ModelLoader, make_loader
from model_server.loading.weights import mismatches, read_weights
from model_server.models.audio import vits
from model_server.models.audio.synthesizer_recipe import VITS, SynthesizerRecipe
from model_server.models.audio.vits_config import VitsConfig
from model_server.models.registry import make_recipe
from model_server.plan.checkpoint.inspect import inspect
from sax.errors import CheckpointError, InvalidRequest
from tests.each_case import each_case
from tests.golden.voice_folder import tensors_of, write_case
from tests.model_server.loading.loads import quiet, spec_of
from tests.tools.golden.voices import CASES, HERE

pytestmark = pytest.mark.timeout(600)  # compiles on busy cores

CASE = "vits_speakers"  # with all that a model may have
_CASES = [name if name == CASE else pytest.param(name, marks=pytest.mark.nightly) for name in CASES]
BUCKETS = {"TOKEN_BUCKETS": [128], "FRAME_BUCKETS": [512, 1024]}


def load(loader: ModelLoader, checkpoint: Path | str, path: str = "auto", **values: Any) -> Any:
    overrides = {key: json.dumps(value) for key, value in values.items()}
    return loader(spec_of(checkpoint, path, **overrides), quiet)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(CASE, tmp_path_factory.mktemp("voices") / CASE)


@pytest.fixture(scope="module")
def loader() -> Iterator[ModelLoader]:
    made = make_loader(ModelServerConfig(queue=7))
    yield made
    made.watch.stop()


@pytest.fixture(scope="module")
def loaded(loader: ModelLoader, folder: Path) -> Iterator[LoadedSynthesizer]:
    made = load(loader, folder, VOICES={"nova": 2}, **BUCKETS)
    yield made
    made.runner.close()


def weights_of(folder: Path) -> tuple[SynthesizerRecipe, Any]:
    checkpoint = open_checkpoint(str(folder))
    recipe = VITS.configure(checkpoint.config, VITS.overridable)
    leaves = read_weights(recipe.blueprint.declarations, recipe.needed(checkpoint), quiet)
    return recipe, recipe.blueprint.assemble(leaves).arrays()


@pytest.mark.parametrize("name", _CASES)
def test_durations_and_samples_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    recipe, weights = weights_of(write_case(name, tmp_path / name))
    config, golden = recipe.config, np.load(HERE / name / "golden.npz")
    ids, filled = (
        golden["tokens"],
        np.random.default_rng(1),
    )  # what lies in the padding is arbitrary
    tokens = filled.integers(0, config.vocab, 64, np.int32)
    tokens[: len(ids)] = ids
    read = jax.jit(lambda *given: vits.read_text(config, weights, *given, 512))
    say = jax.jit(lambda *given: vits.spoken(config, weights, *given))
    for speaker in CASES[name]:
        who, noise = np.int32(speaker or 0), filled.normal(size=(64, 2)).astype(np.float32)
        if config.duration.stochastic:
            noise[: len(ids)] = golden[f"duration_noise_{speaker}"].T
        text = read(tokens, len(ids), who, noise, np.float32(config.speed))
        frames = np.ceil(np.exp(golden[f"log_frames_{speaker}"]) / config.speed)
        assert text.frames[: len(ids)].tolist() == frames.tolist()
        assert int(text.total) == frames.sum()
        noise = filled.normal(size=(400, config.channels)).astype(np.float32)
        noise[: int(text.total)] = golden[f"noise_{speaker}"]
        samples, wanted = say(text, who, noise), golden[f"samples_{speaker}"]
        assert len(wanted) == int(text.total) * config.frame
        np.testing.assert_allclose(samples[: len(wanted)], wanted, atol=1e-4)


def test_names_of_the_time_of_publication_are_read_as_those_of_today(tmp_path: Path) -> None:
    now = write_case(CASE, tmp_path / "now")
    then = write_case(CASE, tmp_path / "then")
    old = {"parametrizations.weight.original0": "weight_g"}
    old["parametrizations.weight.original1"] = "weight_v"
    renamed: dict[str, np.ndarray] = {}
    for name, tensor in tensors_of(CASE).items():
        end = next((end for end in old if name.endswith(end)), "")
        renamed[name.removesuffix(end) + old.get(end, "")] = tensor
    save_file(renamed, then / "model.safetensors")
    first, second = (jax.tree.leaves(weights_of(each)[1]) for each in (now, then))
    assert all(map(np.array_equal, first, second))


def piece_of(loaded: LoadedSynthesizer, text: str, **changes: Any) -> SpeechPiece:
    piece = SpeechPiece(tuple(loaded.tokenizer.tokens(text)), 0, 1.0, 7, 0)
    return piece._replace(**changes)


def said(loaded: LoadedSynthesizer, *pieces: SpeechPiece) -> list[np.ndarray]:
    answers = loaded.runner.run(pieces)
    samples = [each.samples for each in answers if isinstance(each, SpokenPiece)]
    assert len(samples) == len(pieces), answers
    return samples


def test_a_seed_gives_one_sound_whatever_is_in_the_batch(loaded: LoadedSynthesizer) -> None:
    piece = piece_of(loaded, "the cat sat")
    others = [
        piece._replace(seed=8),
        piece._replace(index=1),
        piece._replace(speaker=2),
        piece_of(loaded, "the cat sat on it, and then it left"),
    ]
    (alone,) = said(loaded, piece)
    *rest, again = said(loaded, *others[:3], piece)
    assert np.array_equal(alone, again)
    assert not any(np.array_equal(alone, each) for each in rest)
    assert np.array_equal(said(loaded, others[3], piece)[1], alone)
    assert len(alone) % loaded.frame == 0
    assert np.abs(alone).max() <= 1.0


def test_speech_is_faster_by_the_asked_factor(loaded: LoadedSynthesizer) -> None:
    text = "the cat sat on it"
    slow, fast = (len(said(loaded, piece_of(loaded, text, speed=speed))[0]) for speed in (0.5, 2.0))
    assert 2.5 < slow / fast < 4.5  # each token lasts a frame at least


def test_a_piece_that_lasts_too_long_is_none(loaded: LoadedSynthesizer) -> None:
    piece = piece_of(loaded, "the cat sat on it", speed=0.01)
    assert loaded.runner.run([piece]) == [TooLong()]


def test_noise_is_drawn_row_by_row() -> None:
    few, many = (np.asarray(drawn(jnp.uint32(1), jnp.uint32(2), 0, (n, 3))) for n in (4, 9))
    assert np.array_equal(few, many[:4])
    other = np.asarray(drawn(jnp.uint32(1), jnp.uint32(2), 1, (4, 3)))
    assert not np.isin(few, other).any()
    lots = np.asarray(drawn(jnp.uint32(3), jnp.uint32(0), 0, (4000, 2)))
    assert (abs(lots.mean()), abs(lots.std() - 1)) < (0.05, 0.05)


def test_what_is_loaded_says_so(loaded: LoadedSynthesizer, folder: Path) -> None:
    assert loaded.methods == ("am.speak",)
    assert {"default": 0, "2": 2, "nova": 2}.items() <= loaded.voices.items()
    assert loaded.parts.weights > 0 < loaded.parts.workspace
    report = inspect(str(folder))
    assert (report.family, report.problems) == ("VITS (speech)", [])
    assert report.memory["float32"] == loaded.parts.weights


@each_case(
    "overrides, words",
    [
        ({"DTYPE": "int8"}, "DTYPE"),
        ({"VOICES": {"nova": 3}}, "speakers 0 to 2"),
        ({"VOICES": ["nova"]}, "VOICES"),
        ({"FRAME_BUCKETS": []}, "FRAME_BUCKETS"),
        ({"TOKEN_BUCKETS": [8]}, "TOKEN_BUCKETS"),
        ({"ICI_MESH_SHAPE": [1, 1, 2]}, "ICI_MESH_SHAPE"),
    ],
)
def test_overrides_that_cannot_be_are_refused(
    overrides: dict[str, Any], words: str, loader: ModelLoader, folder: Path
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        load(loader, folder, **overrides)


def test_other_paths_and_random_weights_are_refused(loader: ModelLoader, folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="a model of speech"):
        make_recipe("auto", json.loads((folder / "config.json").read_text()), {})
    with pytest.raises(InvalidRequest, match="checkpoint"):
        load(loader, "None", "vits")
    with pytest.raises(CheckpointError, match="whisper loads checkpoints of model_type whisper"):
        load(loader, folder, "whisper")


def test_a_checkpoint_that_lacks_tensors_is_refused(loader: ModelLoader, tmp_path: Path) -> None:
    folder = write_case(CASE, tmp_path / CASE)
    tensors = tensors_of(CASE)
    del tensors["decoder.conv_post.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks decoder\.conv_post\.weight"):
        load(loader, folder)


@each_case(
    "changes, words",
    [
        ({"upsample_rates": [4]}, "upsample_rates"),
        ({"upsample_kernel_sizes": [8, 5]}, "larger by an even number"),
        ({"hidden_size": 25}, "hidden_size = 25"),
        ({"flow_size": 13}, "flow_size = 13"),
        ({"num_speakers": 3, "speaker_embedding_size": 0}, "no speaker_embedding_size"),
        ({"resblock_kernel_sizes": [2, 3]}, "odd"),
        ({"wavenet_kernel_size": 4}, "odd"),
        ({"depth_separable_channels": 4}, "depth_separable_channels"),
        ({"speaking_rate": 0}, "speaking_rate"),
        ({"sampling_rate": 10}, "sampling_rate"),
        ({"a_new_key": 1}, "a_new_key"),
    ],
)
def test_settings_that_are_not_computed_are_refused(changes: dict[str, Any], words: str) -> None:
    config = json.loads((HERE / "vits" / "config.json").read_text())
    with pytest.raises(CheckpointError, match=words):
        VitsConfig.from_hf(config | changes)


def test_one_speaker_needs_no_embeddings_of_others(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    config = {**checkpoint.config, "num_speakers": 1}
    recipe = VITS.configure(config, VITS.overridable)
    assert [*mismatches(recipe.blueprint.declarations, recipe.needed(checkpoint))] == []
