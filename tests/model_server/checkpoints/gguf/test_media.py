"""Encoders in files of their own, as llama.cpp's converter writes them, hold the folders' weights.

The converter's metadata, names, shapes and digests of both files are in
tests/golden/converted_media; the files are built here again by our tables (see test_converted).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.gguf.architecture import halves_of_heads
from model_server.checkpoints.gguf.projectors import PROJECTORS
from model_server.checkpoints.media_part import media_part_of
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import mismatches, read_weights
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import ONE_DEVICE
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.gguf.test_converted import Case, converted, write
from tests.model_server.models.family_cases import F32
from tests.model_server.models.media.media_runs import recipe_of
from tests.tools.golden import common
from tests.tools.golden.converted import digest
from tests.tools.golden.converted_media import MEDIA, tensors_of

GOLDEN = MEDIA.parent / "converted_media"
NAMES = sorted(path.stem for path in GOLDEN.iterdir())
HALF = "mm.input_projection.weight"
TOKENS = {"gemma3": "<image_soft_token>", "pixtral": "[IMG]"}
Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class MediaCase(Case):
    """A text's file as `Case` has it, and the encoder's."""

    @property
    def both(self) -> dict[str, Any]:
        return json.loads((GOLDEN / f"{self.name}.json").read_text())

    @property
    def told(self) -> dict[str, Any]:
        return self.both["text"]

    @property
    def config(self) -> dict[str, Any]:
        return common.changed(
            common.read_json(MEDIA / self.name / "config.json"), self.both["config"]
        )

    @property
    def tensors(self) -> Tensors:
        return tensors_of(self.name)

    @property
    def kind(self) -> str:
        return self.both["media"]["metadata"]["clip.projector_type"]

    def folder(self, place: Path) -> Path:
        place.mkdir()
        given = common.read_json(MEDIA / self.name / "preprocessor_config.json")
        kept = {key: given[key] for key in ("image_mean", "image_std")}
        (place / "preprocessor_config.json").write_text(json.dumps(kept))
        (place / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, place / "model.safetensors", {"format": "pt"})
        return place

    def files(self, place: Path, mmproj: str = "mmproj-x-F16.gguf") -> Path:
        config = self.config | self.config.get("text_config", {})
        token: int = self.config.get("image_token_id", self.config.get("image_token_index", 0))
        tokens = [f"x{each}" for each in range(config["vocab_size"])]
        tokens[token] = TOKENS.get(self.kind, "<|image_pad|>")
        metadata = self.told["metadata"] | {"tokenizer.ggml.tokens": tokens}
        path = write(place / "x-Q4_K_M.gguf", metadata, converted(self, config))
        write(place / mmproj, self.both["media"]["metadata"], encoder_of(self))
        return path


def encoder_of(case: MediaCase) -> Tensors:
    """Return what the converter makes of the folder's encoder, by its names, with its digests."""
    told, projector = case.both["media"], PROJECTORS[case.kind]
    weights = case.tensors
    own = {own_name(name): numbers for name, numbers in weights.items()}
    layers = told["metadata"]["clip.vision.block_count"]
    heads = told["metadata"]["clip.vision.attention.head_count"]
    made: Tensors = {}
    for name, parts, inside in projector.places(layers, case.config["vision_config"]):
        if (numbers := own.get(name)) is None:
            continue
        if inside in projector.rotated:
            back = np.empty_like(numbers)
            back[halves_of_heads(len(numbers), heads)] = numbers
            numbers = back
        numbers = numbers + np.float32(name in projector.plus_one)
        pieces = np.moveaxis(numbers, 2, 0) if numbers.ndim == 5 else np.split(numbers, len(parts))
        made |= dict(zip(parts, pieces, strict=True))
    for name in told["tensors"].keys() & projector.ignored:
        made[name] = next(x for n, x in weights.items() if "embed_tokens" in n)[263]
    if HALF in made:
        made[HALF] = made[HALF].astype(np.float16)  # whatever the others are
    assert made.keys() == told["tensors"].keys()
    for name, (shape, wanted) in told["tensors"].items():
        assert (list(made[name].shape), digest(made[name])) == (shape, wanted), name
    return made


def own_name(name: str) -> str:
    return name.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.")


@dataclass(frozen=True)
class AsLlama(MediaCase):
    """A text's file as the converter wrote it in 2025, of the architecture llama."""

    @property
    def told(self) -> dict[str, Any]:
        given = super().told
        renamed = {key.replace("mistral3.", "llama."): x for key, x in given["metadata"].items()}
        return given | {"metadata": renamed | {"general.architecture": "llama"}}


@contextmanager
def opened(path: Path) -> Iterator[Checkpoint]:
    with closing(open_checkpoint(str(path))) as checkpoint:
        yield checkpoint


def read(path: Path) -> tuple[Any, Tensors]:
    """Return the recipe of the encoder, and all weights by their path in the modules."""
    with opened(path) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, F32)
        part = media_part_of(checkpoint)
        assert part is not None
        encoder, text = recipe.media_blueprint(ONE_DEVICE), recipe.blueprint(checkpoint=checkpoint)
        own = without_prefixes(checkpoint, recipe.unused)
        found: Tensors = {}
        for prefix, module, tensors in (("encoder", encoder, part), ("text", text, own)):
            assert list(mismatches(module.declarations, tensors)) == []
            leaves = read_weights(module.declarations, tensors, lambda _: None)
            for each, leaf in zip(module.declarations, leaves, strict=True):
                found[f"{prefix}.{each.path}"] = np.asarray(leaf)
    return recipe_of(recipe), found


def compare(case: MediaCase, place: Path) -> None:
    place.mkdir()
    (media, found), (wanted_media, wanted) = read(case.files(place)), read(case.folder(place / "f"))
    for key in ("token", "form", "piece", "columns", "per_row", "width", "pieces", "placeholder"):
        assert getattr(media, key) == getattr(wanted_media, key), key
    assert found.keys() == wanted.keys()
    for name, numbers in wanted.items():
        bound = 1e-3 if name == "encoder.each.0.projection.kernel" else 1e-6  # of HALF
        np.testing.assert_allclose(found[name], numbers, rtol=bound, atol=bound, err_msg=name)
    image = np.arange(64 * 48 * 3, dtype=np.uint8).reshape(64, 48, 3)
    side = media.form.side if hasattr(media.form, "side") else None
    image = image[:side, :side] if side else image
    if not case.name.startswith("gemma3"):
        pieces, others = media.prepare(image).pieces, wanted_media.prepare(image).pieces
        np.testing.assert_allclose(pieces, others, rtol=0, atol=1e-5)


@each_case("name", NAMES)
def test_both_files_hold_the_folders_weights(name: str, tmp_path: Path) -> None:
    compare(MediaCase(name), tmp_path / name)


def test_mistrals_text_under_llamas_name_has_its_encoder(tmp_path: Path) -> None:
    compare(AsLlama("mistral3"), tmp_path / "llama")


def test_a_folder_with_both_files_is_one_checkpoint(tmp_path: Path) -> None:
    MediaCase("gemma3").files(tmp_path, "mmproj-BF16.gguf")
    with opened(tmp_path) as checkpoint:
        assert media_part_of(checkpoint) is not None
        assert not any(name.startswith("vision") for name in checkpoint.names())


def test_the_file_of_another_model_is_left_alone(tmp_path: Path) -> None:
    case = MediaCase("gemma3")
    for number, (name, changes) in enumerate(
        (
            ("mmproj-other-F16.gguf", {}),
            ("mmproj-x.gguf", {"clip.vision.projection_dim": 96}),
            ("mmproj-x.gguf", {"clip.projector_type": "idefics3"}),
        )
    ):
        place = tmp_path / str(number)
        place.mkdir()
        path = case.files(place, "y.gguf")
        (place / "y.gguf").unlink()
        write(place / name, case.both["media"]["metadata"] | changes, encoder_of(case))
        with opened(path) as checkpoint:
            assert media_part_of(checkpoint) is None
            assert "vision_config" not in checkpoint.config


def refused(case: MediaCase, place: Path, metadata: Mapping[str, Any], tensors: Tensors) -> str:
    place.mkdir()
    path = case.files(place)
    write(place / "mmproj-x-F16.gguf", case.both["media"]["metadata"] | metadata, tensors)
    with pytest.raises(CheckpointError) as error, opened(path):
        pass
    return error.value.text


def test_what_an_encoder_cannot_have_is_refused_by_name(tmp_path: Path) -> None:
    case = MediaCase("qwen2_5_vl")
    whole = encoder_of(case)
    without_keys = {name: x for name, x in whole.items() if name != "v.blk.0.attn_k.weight"}
    more = whole | {"v.other.weight": np.ones((2, 2), np.float32)}
    for name, metadata, tensors, said in (
        ("key", {"clip.vision.unheard_of": 3}, whole, "clip.vision.unheard_of, which is not"),
        ("part", {}, without_keys, "v.blk.0.attn_k.weight.* some are missing"),
        ("more", {}, more, "no tensor 'v.other.weight'"),
        ("layers", {"clip.vision.block_count": 10**6}, whole, "announces 1000000 layers"),
        ("pattern", {"clip.vision.n_wa_pattern": "x"}, whole, "n_wa_pattern must be a whole"),
    ):
        text = refused(case, tmp_path / name, metadata, tensors)
        assert "mmproj-x-F16.gguf" in text
        assert re.search(said, text), text


def test_matrices_under_each_others_names_are_told_by_their_shapes(tmp_path: Path) -> None:
    case = MediaCase("gemma3")
    path, tensors = case.files(tmp_path), encoder_of(case)

    def other(name: str) -> str:
        swap = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
        return next((name.replace(a, b) for a, b in swap.items() if a in name), name)

    _, wanted = read(path)
    turned = {other(name): numbers for name, numbers in tensors.items()}
    write(tmp_path / "mmproj-x-F16.gguf", case.both["media"]["metadata"], turned)
    _, found = read(path)
    for name, numbers in wanted.items():
        np.testing.assert_array_equal(found[name], numbers, err_msg=name)
