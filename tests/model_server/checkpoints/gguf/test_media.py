"""Encoders in files of their own, as llama.cpp's converter writes them, hold the folders' weights.

The converter's metadata, names, shapes and digests of both files are in
tests/golden/converted_media; the files are built here again by our tables (see test_converted).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.gguf.architecture import halves_of_heads
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.header import GgufHeader
from model_server.checkpoints.gguf.media import media_of
from model_server.checkpoints.gguf.projectors import PROJECTORS
from model_server.checkpoints.gguf.projectors.projector import FRAMES, GgufProjector
from model_server.checkpoints.media_part import media_part_of
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import mismatches, read_weights
from model_server.models.media.media_recipe import DecodedVideo, MediaRecipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import ONE_DEVICE
from model_server.sharing.images.forms import WindowsForm
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.gguf.test_converted import (
    HOSTILE,
    Case,
    converted,
    metadata_of,
    stored,
    told_of,
    write,
)
from tests.model_server.models.family_cases import F32
from tests.tools.golden import common
from tests.tools.golden.converted import digest
from tests.tools.golden.converted_media import MEDIA, preprocessor_of, tensors_of

GOLDEN = MEDIA.parent / "converted_media"
NAMES = sorted(path.stem for path in GOLDEN.iterdir())
# What the converter rounds to float16, whatever the others are
HALVES = {
    "gemma3": ("mm.input_projection.weight",),
    "gemma3n": ("a.pre_encode.out.weight",),
    **dict.fromkeys(
        ("qwen2_audio", "qwen2_5_omni", "voxtral"), ("a.conv1d.1.weight", "a.conv1d.2.weight")
    ),
    "qwen3_omni_moe": ("a.conv_out.weight", *(f"a.conv2d.{n}.weight" for n in (1, 2, 3))),
}
UNREAD = "a.position_embd.weight"  # of the Omni models, which compute it
# Of which the golden file has the numbers
COMPUTED = re.compile(r".*\.(per_dim_scale\.weight|conv_norm_var\..*)")
# What takes more memory, or tensors of other sizes, than a case needs
VALUES = {"gemma4": {"IMAGE_PIXELS": str(70 * 36)}}
KEPT = ("image_mean", "image_std")  # of the preprocessor's keys
# Of which nothing else says it
WITH_SIZE = {"gemma3n": ("do_normalize", "size"), "step3p7": ("max_image_size", "size")}
# Which some files have, too
BOUNDS = ("min_pixels", "max_pixels", "max_patches", "min_image_tokens", "max_image_tokens")
HALVED = re.compile(
    r"each\.\d\.(projection|(tower\.)?(first|second)|(tower\.)?inwards|convolutions\.\d)\.kernel"
)
Tensors = dict[str, np.ndarray]
Change = Callable[[np.ndarray, dict[str, Any]], np.ndarray]


def turned(numbers: np.ndarray, sizes: dict[str, Any]) -> np.ndarray:
    made = np.empty_like(numbers)
    made[halves_of_heads(len(numbers), sizes["num_attention_heads"])] = numbers
    return made


def squares(numbers: np.ndarray, sizes: dict[str, Any]) -> np.ndarray:
    side = sizes["patch_size"]
    return np.moveaxis(numbers.reshape(-1, side, side, 3), 3, 1)


def halved(numbers: np.ndarray, sizes: dict[str, Any]) -> np.ndarray:
    """Of each head the pairs that are rotated by rows, then those by columns; not of values."""
    order = np.arange(len(numbers)).reshape(3, sizes["num_attention_heads"], -1, 4)
    pairs = np.stack([order[:2, ..., :2], order[:2, ..., 2:]], axis=2)
    return numbers[np.concatenate([pairs.reshape(-1), order[2].reshape(-1)])]


def by_axes(numbers: np.ndarray, sizes: dict[str, Any]) -> np.ndarray:
    """Of each head of MiniMax-M3 both numbers of the pairs of frames, then of rows, of columns."""
    if "temporal_patch_size" not in sizes:
        return numbers  # of another model
    order = np.arange(len(numbers)).reshape(sizes["num_attention_heads"], -1)
    pairs = order.shape[1] // 6
    turning, rest = np.split(order, [6 * pairs], axis=1)
    axes = [turning[:, at * pairs :][:, :pairs] for at in (0, 3, 1, 4, 2, 5)]
    return numbers[np.concatenate([*axes, rest], axis=1).ravel()]


# What the converter does to the numbers of a folder, by the end of their name there.
CHANGES: dict[str, Change] = {
    "attention.q_proj": turned,
    "attention.k_proj": turned,
    "wqkv": halved,
    "self_attn.q_proj": by_axes,
    "self_attn.k_proj": by_axes,
    "mm_soft_emb_norm": lambda numbers, sizes: numbers + np.float32(1),
    "patch_embedder.input_proj.weight": squares,
    **dict.fromkeys(
        (f"audio_tower.conv2d{number}.bias" for number in (1, 2, 3)),
        lambda numbers, sizes: numbers[:, None, None],
    ),
    "conv.up_conv.weight": lambda numbers, sizes: numbers[..., 0],
    "conv.down_conv.weight": lambda numbers, sizes: numbers[..., 0],
    "depth_conv.conv": lambda numbers, sizes: numbers[:, 0],
    "conv_stem.conv.bias": lambda numbers, sizes: numbers[None, :, None, None],
    "conv1.bias": lambda numbers, sizes: numbers[:, None],
    "conv2.bias": lambda numbers, sizes: numbers[:, None],
    # Gemma 3n's is as it was
    "depthwise_conv1d": lambda numbers, sizes: (
        numbers if "conf_conv_kernel_size" in sizes else numbers[:, 0]
    ),
    "self_attn.per_dim_scale": lambda numbers, sizes: np.logaddexp(np.float32(0), numbers),
    **dict.fromkeys(
        ("input_min", "input_max", "output_min", "output_max"),
        lambda numbers, sizes: numbers.reshape(1),
    ),
}


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
    def thinker(self) -> dict[str, Any]:
        """The config without what speaks."""
        return self.config.get("thinker_config", self.config)

    @property
    def tensors(self) -> Tensors:
        return tensors_of(self.name, self.both.get("shapes", {}))

    @property
    def projectors(self) -> list[GgufProjector]:
        metadata = self.both["media"]["metadata"]
        facts = Facts(GgufHeader(metadata, dict.fromkeys(self.both["media"]["tensors"])), "clip")  # type: ignore[arg-type]
        keys = ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type")
        found = [each for key in keys if key in metadata for each in PROJECTORS[metadata[key]]]
        fitting = [each for each in found if each.fits(facts)]
        return [*{each.side: each for each in reversed(fitting)}.values()]  # the first of a side

    def folder(self, place: Path) -> Path:
        place.mkdir()
        said = self.both["preprocessor"]
        given = preprocessor_of(self.name) | said
        bounded = "clip.vision.image_max_pixels" in self.both["media"]["metadata"]
        keys = (*KEPT, *(key for key in BOUNDS if bounded or key in said))
        keys = (*keys, *WITH_SIZE.get(self.name, ()))
        kept = {key: given[key] for key in keys if key in given}
        bins = self.both["media"]["metadata"].get("clip.audio.num_mel_bins")
        if bins is None:
            (place / "preprocessor_config.json").write_text(json.dumps(kept))
        else:
            lengths = {key: said[key] for key in said if key == "chunk_length"}
            heard = {"feature_size": given.get("feature_size", bins), **lengths}
            both = {"image_processor": kept, "feature_extractor": heard}
            (place / "processor_config.json").write_text(json.dumps(both))
        (place / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, place / "model.safetensors", {"format": "pt"})
        return place

    def files(self, place: Path, mmproj: str = "mmproj-x-F16.gguf") -> Path:
        config = self.thinker | self.thinker.get("text_config", {})
        tokens = [f"x{each}" for each in range(config["vocab_size"])]
        for each in self.projectors:
            for key, text in each.tokens.items():
                tokens[token_of(config, key)] = text
        metadata = self.told["metadata"] | {"tokenizer.ggml.tokens": tokens}
        path = write(place / "x-Q4_K_M.gguf", metadata, converted(self, config))
        write(place / mmproj, self.both["media"]["metadata"], encoder_of(self))
        return path


def token_of(config: Mapping[str, Any], key: str) -> int:
    return config[key if key in config else key.replace("_id", "_index")]


@cache
def encoder_of(case: MediaCase) -> Tensors:
    """Return what the converter makes of the folder's encoders, by its names, with its digests."""
    told, made = case.both["media"], Tensors()
    with TemporaryDirectory() as scratch, opened(case.folder(Path(scratch) / "folder")) as folder:
        part = media_part_of(folder)
        assert part is not None
        own = {name: part.read(name) for name in part.names()}
    own = folded(own)
    for projector in case.projectors:
        made |= _made(projector, own, told, case.thinker.get(projector.part, {}))
    for name in told["tensors"].keys() & {"v.token_embd.img_break"}:
        made[name] = next(x for n, x in case.tensors.items() if "embed_tokens" in n)[263]
    if any(UNREAD in projector.ignored for projector in case.projectors):
        made[UNREAD] = np.zeros(told["tensors"][UNREAD][0], np.float32)
    for name in HALVES.get(case.name, ()):
        made[name] = made[name].astype(np.float16)
    assert made.keys() == told["tensors"].keys()
    for name, (shape, wanted) in told["tensors"].items():
        found = made[name]
        assert list(found.shape) == shape, name
        if name == UNREAD and not found.any():
            continue
        if COMPUTED.fullmatch(name):
            np.testing.assert_allclose(found.ravel(), wanted, rtol=1e-6, atol=1e-6, err_msg=name)
        else:
            assert digest(found) == wanted, name
    return made


def folded(own: Tensors) -> Tensors:
    """Return the tensors with each batch norm's mean and variance in its scale and offset."""
    made, end = dict(own), ".batch_norm.running_var"
    for name in [name.removesuffix(end) for name in own if name.endswith(end)]:
        mean, variance = (made.pop(f"{name}.batch_norm.running_{x}") for x in ("mean", "var"))
        scale = own[f"{name}.batch_norm.weight"] / np.sqrt(variance + np.float32(1e-5))
        made[f"{name}.batch_norm.weight"] = scale
        made[f"{name}.batch_norm.bias"] = own[f"{name}.batch_norm.bias"] - mean * scale
    return made


def _made(
    projector: GgufProjector, own: Tensors, told: Mapping[str, Any], encoder: dict[str, Any]
) -> Tensors:
    side, made, metadata = f"clip.{projector.side}", Tensors(), told["metadata"]
    heads = {"num_attention_heads": metadata[f"{side}.attention.head_count"]}
    layers = metadata[f"{side}.block_count"] if projector.layers else 0
    stacks: dict[str, list[np.ndarray]] = {}
    for name, parts, _, at in projector.places(layers, encoder, told["tensors"]):
        if (numbers := own.get(name)) is None:
            continue
        ends = (name, name.removesuffix(".weight").removesuffix(".bias"))
        change = next((x for end, x in CHANGES.items() if any(n.endswith(end) for n in ends)), None)
        if change is not None:
            numbers = change(numbers, encoder | heads)
        if at is not None:
            stacks.setdefault(parts[0], []).append(numbers)
            continue
        pieces = np.moveaxis(numbers, 2, 0) if parts == FRAMES else np.split(numbers, len(parts))
        made |= dict(zip(parts, pieces, strict=True))
    return made | {name: np.stack(numbers) for name, numbers in stacks.items()}


@dataclass(frozen=True)
class OfEncoders(MediaCase):
    """The encoders' file, where `Case` has that of the text."""

    @property
    def told(self) -> dict[str, Any]:
        return self.both["media"]


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


@dataclass(frozen=True)
class Opened:
    media: tuple[MediaRecipe, ...]
    weights: Tensors  # by their path in the modules
    told: str  # of the encoders


def read(path: Path, values: Mapping[str, Any]) -> Opened:
    with opened(path) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, {**F32, **values})
        part = media_part_of(checkpoint)
        assert part is not None
        part = without_prefixes(part, tuple(x for each in recipe.media for x in each.unused))
        encoder, text = recipe.media_blueprint(ONE_DEVICE), recipe.blueprint(checkpoint=checkpoint)
        own = without_prefixes(checkpoint, recipe.unused)
        found, told = Tensors(), ""
        for prefix, module, tensors in (("encoder", encoder, part), ("text", text, own)):
            assert list(mismatches(module.declarations, tensors)) == []
            leaves = read_weights(module.declarations, tensors, lambda _: None)
            for each, leaf in zip(module.declarations, leaves, strict=True):
                found[f"{prefix}.{each.path}"] = np.asarray(leaf)
            if module is encoder:
                told = told_of(module.assemble([jnp.asarray(leaf) for leaf in leaves]))
    return Opened(recipe.media, found, told)


def compare(case: MediaCase, place: Path) -> None:
    place.mkdir()
    values = VALUES.get(case.name, {})
    found, wanted = read(case.files(place), values), read(case.folder(place / "f"), values)
    for each, other in zip(found.media, wanted.media, strict=True):
        compare_recipes(each, other)
    compare_videos(found.media, wanted.media)
    weights, others = with_one_norm(found.weights), with_one_norm(wanted.weights)
    assert weights.keys() == others.keys()
    for name, numbers in others.items():
        bound = 1e-3 if case.name in HALVES and HALVED.search(name) else 1e-6
        made, added = weights[name], np.zeros(0)
        if name.startswith("text."):  # rows that fill the vocabulary
            made, added = made[: len(numbers)], made[len(numbers) :]
        assert not added.any(), f"{name} has more rows"
        np.testing.assert_allclose(made, numbers, rtol=bound, atol=bound, err_msg=name)
    assert found.told == wanted.told


def with_one_norm(weights: Tensors) -> Tensors:
    """Return weights with the mean and variance of a batch norm in its scale and offset."""
    made, end = dict(weights), ".middle.variance"
    for name in [name.removesuffix(end) for name in weights if name.endswith(end)]:
        mean, variance = (made.pop(f"{name}.middle.{part}") for part in ("mean", "variance"))
        scale = weights[f"{name}.middle.scale"] / np.sqrt(variance + np.float32(1e-5))
        made[f"{name}.middle.scale"] = scale
        made[f"{name}.middle.bias"] = weights[f"{name}.middle.bias"] - mean * scale
    return made


def compare_recipes(found: MediaRecipe, wanted: MediaRecipe) -> None:
    parts = found.prepare, wanted.prepare
    for field in fields(wanted):
        if field.name not in ("build", "prepare", "beside", "video", "unused"):
            assert getattr(found, field.name) == getattr(wanted, field.name), field.name
    assert (found.video is None) == (wanted.video is None)
    made, other = (part(example_of(wanted)) for part in parts)
    np.testing.assert_allclose(made.pieces, other.pieces, rtol=0, atol=1e-5)
    assert (made.rows, made.grid, made.text) == (other.rows, other.grid, other.text)
    np.testing.assert_array_equal(made.places, other.places)


def compare_videos(found: tuple[MediaRecipe, ...], wanted: tuple[MediaRecipe, ...]) -> None:
    """Compare where the parts of a video of 8 s stand in time, and of one that is heard."""
    recipe = next((each for each in wanted if each.video is not None), None)
    if recipe is None:
        return
    frames = np.stack([example_of(recipe)] * 16)
    video = DecodedVideo(frames, tuple(range(16)), 2.0, 16)
    made, other = (parts_of_video(each, video) for each in (found, wanted))
    np.testing.assert_equal(made, other)


def parts_of_video(media: tuple[MediaRecipe, ...], decoded: DecodedVideo) -> list[Any]:
    recipe = next(each.video for each in media if each.video is not None)
    whole = recipe.prepare(decoded)
    if recipe.woven is not None:
        sound = next(each for each in media if each.kind == "audio")
        whole = recipe.woven(whole, sound.prepare(np.tile(example_of(sound), 10)))
    own = [recipe.form, recipe.placeholder, recipe.marked, whole.turns, whole.text]
    return [*own, *((part.rows, part.frame, part.lasts, part.grid) for part in whole.parts)]


def example_of(media: MediaRecipe) -> np.ndarray:
    """Return a picture, or a sound of 0.6 s."""
    if media.kind == "audio":
        return np.sin(np.arange(9600) * 0.05).astype(np.float32)
    small = getattr(media.form, "most", 64 * 48) < 64 * 48
    sides = (40, 32) if small else (64, 48)
    high, wide = (side - side % getattr(media.form, "factor", 1) for side in sides)
    high, wide = (getattr(media.form, "size", None) or each for each in (high, wide))
    if isinstance(media.form, WindowsForm):  # one window, and the whole below it
        high, wide = media.form.tile + media.form.whole, media.form.tile + 1
    return np.arange(high * wide * 3, dtype=np.uint8).reshape(high, wide, 3)


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
            ("mmproj-x.gguf", {"clip.projector_type": "ultravox"}),
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


def swapped(name: str, numbers: np.ndarray) -> tuple[str, np.ndarray]:
    """Give both matrices of a feed-forward each other's names, which their shapes tell."""
    swap = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    return next((name.replace(a, b) for a, b in swap.items() if a in name), name), numbers


def as_llama_cpp_reads(name: str, numbers: np.ndarray) -> tuple[str, np.ndarray]:
    return name.replace("conv_norm_var", "conv_norm"), numbers


def in_four_dimensions(name: str, numbers: np.ndarray) -> tuple[str, np.ndarray]:
    return name, numbers[None, :, None, None] if name.endswith(".gamma") else numbers


@each_case(
    "name, other",
    [
        ("gemma3", swapped),
        ("gemma3n", in_four_dimensions),
        ("granite_speech", as_llama_cpp_reads),
    ],
)
def test_what_other_versions_of_the_converter_wrote_is_read_alike(
    name: str, other: Callable[[str, np.ndarray], tuple[str, np.ndarray]], tmp_path: Path
) -> None:
    case = MediaCase(name)
    path, tensors = case.files(tmp_path), encoder_of(case)
    wanted = read(path, {}).weights
    turned = dict(other(each, numbers) for each, numbers in tensors.items())
    write(tmp_path / "mmproj-x-F16.gguf", case.both["media"]["metadata"], turned)
    found = read(path, {}).weights
    for each, numbers in wanted.items():
        np.testing.assert_array_equal(found[each], numbers, err_msg=each)


def test_parts_of_a_tower_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    more = {"clip.vision.expert_count_per_layer": [0, 1, 5]}
    case = MediaCase("dots3_note")
    text = refused(case, tmp_path / "experts", more, encoder_of(case))
    assert "its metadata says [0, 1, 5] experts, and its tensors say others" in text
    case = MediaCase("gemma3n")
    whole = encoder_of(case)
    gone = {name: x for name, x in whole.items() if not name.startswith("v.blk.1.0.")}
    part = {name: x for name, x in whole.items() if name != "v.blk.3.1.attn.query.proj.weight"}
    for name, metadata, tensors, said in (
        ("gone", {}, gone, r"v\.blk\.1\.1, and not the block before it"),
        ("part", {}, part, r"v\.blk\.3\.1 is no block of MobileNet-V5"),
        ("square", {"clip.vision.patch_size": 30}, whole, "2 vectors are no square"),
    ):
        assert re.search(said, refused(case, tmp_path / name, metadata, tensors))


@each_case("name", NAMES)
def test_hostile_metadata_of_an_encoder_is_read_or_refused(name: str) -> None:
    case = MediaCase(name)
    config = case.thinker | case.thinker.get("text_config", {})
    tokens = [f"x{each}" for each in range(config["vocab_size"])]
    for projector in case.projectors:
        for key, text in projector.tokens.items():
            tokens[token_of(config, key)] = text
    metadata, tensors = metadata_of(OfEncoders(name)), stored(OfEncoders(name))
    text = {"model_type": [*case.projectors[0].texts][0], "hidden_size": config["hidden_size"]}
    assert media_of(GgufHeader(metadata, tensors), text, tokens) is not None
    for key in metadata:
        fewer = {other: value for other, value in metadata.items() if other != key}
        for changed in (fewer, *(metadata | {key: value} for value in HOSTILE)):
            with contextlib.suppress(CheckpointError):
                media_of(GgufHeader(changed, tensors), text, tokens)
