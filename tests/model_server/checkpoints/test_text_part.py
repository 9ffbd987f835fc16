"""A checkpoint that also sees images is read as the text model in it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.checkpoint_view import CheckpointView
from model_server.checkpoints.media_part import media_part_of
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.text_part import text_config
from model_server.loading.weights import mismatches, read_weights
from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.golden.random_tensor import random_tensor
from tests.model_server.models.family_cases import F32, FAMILIES, checkpoint_of, config_of

CASE = "gemma3_layer_types"
PUBLISHED, LATER = "language_model.model.", "model.language_model."
SIZES = {"image_size": 32, "num_hidden_layers": 1}  # of what sees
VISION = ("vision_tower.embeddings.weight", "multi_modal_projector.mm_soft_emb_norm.weight")


def write(folder: Path, prefix: str, vision: tuple[str, ...] = VISION, **outer: Any) -> str:
    """The golden case as the text part of a checkpoint, below `prefix`."""
    folder.mkdir()
    config = {
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "mm_tokens_per_image": 4,
        "text_config": config_of(CASE),
    }
    (folder / "config.json").write_text(json.dumps(config | {"vision_config": SIZES} | outer))
    shapes = json.loads((FAMILIES / CASE / "tensors.json").read_text())
    tensors = {
        prefix + name.removeprefix("model."): random_tensor(name, tuple(shape))
        for name, shape in shapes.items()
    }
    tensors |= {name: np.ones(3, np.float32) for name in vision}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def weights_of(path: str) -> list[Any]:
    with closing(open_checkpoint(path)) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, F32)
        return read_weights(recipe.blueprint().declarations, checkpoint, lambda _: None)


@pytest.mark.parametrize(
    ("prefix", "vision"), [(PUBLISHED, VISION), (LATER, tuple(f"model.{name}" for name in VISION))]
)
def test_the_text_part_has_the_text_models_weights(
    tmp_path: Path, prefix: str, vision: tuple[str, ...]
) -> None:
    """Its logits are those of the golden case."""
    wanted = weights_of(str(checkpoint_of(CASE)))
    found = weights_of(write(tmp_path / "both", prefix, vision))
    assert len(found) == len(wanted) > 40
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_text_part_lists_the_text_models_tensors_and_the_other_part_the_rest(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "both", PUBLISHED, (*VISION, "language_model.model.surprise.weight"))
    with closing(open_checkpoint(path)) as checkpoint:
        assert isinstance(checkpoint, CheckpointView)
        left_out = set(checkpoint.opened.names()) - set(checkpoint.stored.values())
        assert left_out == set(VISION)
        declared = make_recipe("auto", checkpoint.config, {}).blueprint().declarations
        assert list(mismatches(declared, checkpoint)) == [
            "the checkpoint has tensors that the model does not use: model.surprise.weight"
        ]
        seeing = media_part_of(checkpoint)
        assert seeing is not None
        assert set(seeing.names()) == set(VISION)


def test_the_part_that_sees_has_one_name_for_a_tensor_however_it_is_stored(tmp_path: Path) -> None:
    deeper = ("model.vision_tower.vision_model.embeddings.weight", f"model.{VISION[1]}")
    for number, vision in enumerate((VISION, deeper)):
        with closing(open_checkpoint(write(tmp_path / str(number), LATER, vision))) as checkpoint:
            seeing = media_part_of(checkpoint)
            assert seeing is not None
            assert set(seeing.names()) == set(VISION)
            assert seeing.read(VISION[0]).tolist() == [1, 1, 1]


def test_a_checkpoint_without_tensors_that_see_has_no_sizes_for_them(tmp_path: Path) -> None:
    with closing(open_checkpoint(write(tmp_path / "blind", PUBLISHED, ()))) as checkpoint:
        assert media_part_of(checkpoint) is None
        assert "vision_config" not in checkpoint.config


@each_case(
    "files, says",
    [
        ({"preprocessor_config.json": {"size": 3}}, {"preprocessor_config": {"size": 3}}),
        (
            {"processor_config.json": {"image_processor": {"size": 4}, "other": 1}},
            {
                "preprocessor_config": {"size": 4},
                "processor_config": {"image_processor": {"size": 4}, "other": 1},
            },
        ),
        ({}, {}),
    ],
)
def test_what_the_files_beside_it_say_of_images_is_part_of_the_config(
    tmp_path: Path, files: dict[str, Any], says: dict[str, Any]
) -> None:
    path = write(tmp_path / "both", PUBLISHED)
    for name, content in files.items():
        (Path(path) / name).write_text(json.dumps(content))
    with closing(open_checkpoint(path)) as checkpoint:
        found = checkpoint.config
        assert found["vision_config"] == SIZES
        assert {key: found[key] for key in found if "processor" in key} == says


def test_a_file_about_images_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "both", PUBLISHED)
    (Path(path) / "processor_config.json").write_text('{"image_processor": 3}')
    with pytest.raises(CheckpointError, match="image_processor = 3"):
        open_checkpoint(path)


def test_the_outer_config_counts_for_what_it_alone_says(tmp_path: Path) -> None:
    path = write(tmp_path / "both", PUBLISHED, tie_word_embeddings=None)
    with closing(open_checkpoint(path)) as checkpoint:
        assert checkpoint.config["eos_token_id"] == [1, 106]
        assert checkpoint.config["tie_word_embeddings"] is True
        assert checkpoint.config["model_type"] == "gemma3_text"
        assert checkpoint.format == "safetensors"


def test_of_a_setting_of_the_text_model_the_inner_config_counts() -> None:
    """As in transformers, where either config says that the head is tied."""
    inner = {"hidden_size": 3, "rope_theta": 1.0, "tie_word_embeddings": False, "eos_token_id": 4}
    outer = {"hidden_size": 5, "rope_theta": 2.0, "tie_word_embeddings": True, "eos_token_id": 6}
    found = text_config(outer | {"model_type": "llava", "text_config": inner})
    assert found["hidden_size"] == 3
    assert found["rope_theta"] == 1.0
    assert found["tie_word_embeddings"] is True
    assert found["eos_token_id"] == 6
    # Its n-grams end where the text model's own texts do.
    found = text_config(outer | {"model_type": "qwen4_exp", "text_config": inner})
    assert found["eos_token_id"] == 4


def test_where_one_of_a_pair_is_stored_the_outer_config_alone_says_whether_it_is_tied(
    tmp_path: Path,
) -> None:
    """As transformers 5 loads Gemma 3 and Mistral 3, in which a tie is the default."""
    inner = config_of(CASE) | {"tie_word_embeddings": False}
    for outer, tied in ((None, True), (True, True), (False, False)):
        folder = tmp_path / str(outer)
        said: dict[str, Any] = {} if outer is None else {"tie_word_embeddings": outer}
        path = write(folder, PUBLISHED, text_config=inner, **said)
        with closing(open_checkpoint(path)) as checkpoint:
            assert checkpoint.config["tie_word_embeddings"] is tied, outer
        weights = load_file(folder / "model.safetensors")
        weights["language_model.lm_head.weight"] = weights.pop(f"{PUBLISHED}embed_tokens.weight")
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        with closing(open_checkpoint(path)) as checkpoint:
            assert ("model.embed_tokens.weight" in checkpoint.names()) is tied, outer


def test_a_text_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="text_config = 'gemma'"):
        open_checkpoint(write(tmp_path / "both", PUBLISHED, text_config="gemma"))


def test_older_files_with_the_keys_of_both_parts_beside_each_other_are_read_alike() -> None:
    """Qwen2-VL's; the tensors of its text model have no prefix."""
    with closing(open_checkpoint(str(checkpoint_of("qwen2_vl")))) as checkpoint:
        assert isinstance(checkpoint, CheckpointView)
        assert checkpoint.config["model_type"] == "qwen2_vl_text"
        assert checkpoint.config["vision_config"]["embed_dim"] == 24
        left_out = set(checkpoint.opened.names()) - set(checkpoint.stored.values())
        assert left_out
        assert all(name.startswith("visual.") for name in left_out)


def test_parts_that_see_and_hear_are_no_tensors_of_a_gemma_3ns_text_part(tmp_path: Path) -> None:
    """Under the names of the published files."""
    wanted = config_of("gemma3n")
    others = ("audio_tower.x", "vision_tower.x", "embed_audio.x", "embed_vision.x")
    vision = tuple(f"model.{name}.weight" for name in others)
    outer = {"model_type": "gemma3n", "audio_config": {}, "audio_token_id": 90}
    path = write(tmp_path / "both", LATER, vision, text_config=wanted, **outer)
    with closing(open_checkpoint(path)) as checkpoint:
        assert not [name for name in checkpoint.names() if "audio" in name or "vision" in name]
        assert checkpoint.config["model_type"] == "gemma3n_text"
        make_recipe("auto", checkpoint.config, F32 | {"IMAGES": "false", "SOUNDS": "false"})


def test_a_token_that_a_text_model_computes_with_is_its_own() -> None:
    """Gemma 4 reads the inputs of a sound's tokens at its text model's padding."""
    outer = {"model_type": "gemma4", "pad_token_id": 5, "bos_token_id": 6}
    found = text_config(outer | {"text_config": {"pad_token_id": 0, "bos_token_id": 7}})
    assert (found["pad_token_id"], found["bos_token_id"]) == (0, 6)
