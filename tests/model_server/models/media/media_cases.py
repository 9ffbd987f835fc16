"""The golden cases with images, as checkpoints on disk and as models on devices.

A case is a folder of tests/golden/media (see tools/golden/media); its weights follow from their
names.
"""

from __future__ import annotations

import atexit
import functools
import io
import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.media_part import media_part_of
from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.images.prepared import PreparedImage, with_digest
from model_server.loading.weights import read_weights
from model_server.models.layers.decoder import set_whole_rows
from model_server.models.media.media_recipe import (
    CONFIGS,
    DecodedVideo,
    MediaRecipe,
    PreparedMedia,
    encoder_of,
)
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from model_server.sharing.images.worker import prepared
from tests.tools.golden.media.case import tensor_of
from tests.tools.golden.media.qwen import RATE

MEDIA = Path(__file__).parents[3] / "golden" / "media"
F32 = {"DTYPE": '"float32"'}


def media_case_names() -> list[str]:
    return sorted(folder.name for folder in MEDIA.iterdir())


def first_of_each_type() -> list[str]:
    """One case per model_type: the first by name."""
    first: dict[str, str] = {}
    for name in media_case_names():
        first.setdefault(media_config_of(name)["model_type"], name)
    return list(first.values())


def media_config_of(name: str) -> dict[str, Any]:
    return json.loads((MEDIA / name / "config.json").read_text())


def preprocessor_of(name: str) -> dict[str, Any]:
    return json.loads((MEDIA / name / "preprocessor_config.json").read_text())


@functools.cache
def golden_media_of(name: str) -> dict[str, np.ndarray]:
    """Arrays as tools/golden/media/maker.py says."""
    return dict(np.load(MEDIA / name / "golden.npz"))


def prompt_of(name: str) -> tuple[np.ndarray, int]:
    """A case's prompt with the answer behind it, if there is one, i64[S], and how many of its first
    tokens see each other; 0: none do but those of images."""
    golden = golden_media_of(name)
    if "answer" not in golden:
        return golden["prompt"], 0
    return np.concatenate([golden["prompt"], golden["answer"]]), len(golden["prompt"])


_KINDS = {"image": "image", "sound": "audio", "video": "video"}


def kinds_of(name: str) -> list[str]:
    """The kind of each medium in the prompt: image, audio, video."""
    return [_KINDS[key.partition("_")[0]] for key in _keys(name)]


def images_of(name: str) -> list[np.ndarray]:
    """u8[h, w, 3] each, as they are sent; of sounds f32[n], samples at 16 kHz; of videos all
    frames, u8[T, h, w, 3]. As they stand in the prompt."""
    golden = golden_media_of(name)
    return [golden[key] for key in _keys(name)]


def _keys(name: str) -> list[str]:
    golden = golden_media_of(name)
    if "order" in golden:
        return golden["order"].tolist()
    kind = next(kind for kind in ("sound", "video", "image") if f"{kind}_0" in golden)
    return [f"{kind}_{n}" for n in range(sum(key.startswith(f"{kind}_") for key in golden))]


def write_media_case(name: str, folder: Path) -> Path:
    """Write a Hugging Face folder with the case's random weights, without a tokenizer."""
    folder.mkdir(exist_ok=True)
    for file in (MEDIA / name).glob("*config.json"):
        shutil.copy(file, folder)
    shapes = json.loads((MEDIA / name / "tensors.json").read_text())
    tensors = {tensor: tensor_of(tensor, tuple(shape)) for tensor, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_media_adapter(name: str, folder: Path) -> dict[str, Any]:
    """Write the adapter of a case as PEFT does; return its config."""
    given = json.loads((MEDIA / name / "adapter.json").read_text())
    tensors = {key: tensor_of(key, tuple(shape)) for key, shape in given["tensors"].items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(given["config"]))
    return given["config"]


@functools.cache
def media_checkpoint_of(name: str) -> Path:
    """A folder of the case, kept as long as this process."""
    return write_media_case(name, _everything() / name)


def load_media(name: str, mesh_shape: tuple[int, int, int] = (1, 1, 1)) -> tuple[Any, Any, Recipe]:
    """The language model and its encoders with their weights on a mesh, and their recipe."""
    return load_media_from(media_checkpoint_of(name), mesh_shape)


def load_media_from(
    path: Path, mesh_shape: tuple[int, int, int] = (1, 1, 1)
) -> tuple[Any, Any, Recipe]:
    layout = layout_of(mesh_shape).placed()
    with closing(open_checkpoint(str(path))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, F32)
        assert isinstance(recipe, Recipe)
        decoder, encoder = recipe.blueprint(layout, checkpoint), recipe.media_blueprint(layout)
        part = media_part_of(checkpoint, {CONFIGS[each.kind] for each in recipe.media})
        assert encoder is not None
        assert part is not None
        unused = tuple(prefix for each in recipe.media for prefix in each.unused)
        part = without_prefixes(part, unused)
        parts = ((decoder, checkpoint), (encoder, part))
        made = [
            each.assemble(read_weights(each.declarations, held, lambda _: None, layout))
            for each, held in parts
        ]
        if any(each.is_tiled for each in encoder.declarations):
            set_whole_rows(made[1], None, 0)  # as `EncoderProgram` does
    return made[0], made[1], recipe


def prepared_of(recipe: MediaRecipe, image: np.ndarray, *, beside: bool = False) -> PreparedMedia:
    """An image as the server prepares it, from the bytes of a file; a sound from its samples, and a
    video from its frames, which need not be resized.

    beside: with media of another encoder in the prompt.
    """
    if recipe.form is None:
        return ((recipe.beside if beside else None) or recipe.prepare)(image)
    if image.ndim == 4:
        assert recipe.video is not None
        indices = recipe.video.form.indices(len(image), RATE)
        size = image.shape[2], image.shape[1]
        fit = recipe.video.form.fit(*size, len(indices))
        assert fit.resized == size
        wide, high = fit.size
        padded = np.zeros((len(indices), high, wide, 3), np.uint8)
        padded[:, : size[1], : size[0]] = image[indices]
        video = DecodedVideo(padded, tuple(indices), RATE, len(image))
        return recipe.video.prepare(video)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    answer = prepared(file.getvalue(), recipe.form)
    pixels = np.frombuffer(answer.pixels, np.uint8)
    return recipe.prepare(pixels.reshape(answer.height, answer.width, 3))


def parts_of(
    media: Sequence[MediaRecipe], name: str, order: Sequence[int] | None = None
) -> list[PreparedImage]:
    """The parts of a case's images and sounds that are encoded each by itself, in order.

    order: of the images; None: as they are.
    """
    images, kinds, made = images_of(name), kinds_of(name), list[PreparedImage]()
    numbers = range(len(images)) if order is None else order
    beside = len({encoder_of(media, kinds[number]) for number in numbers}) > 1
    watched: PreparedMedia | None = None  # the video of the sound that follows
    for number in numbers:
        encoder = encoder_of(media, kinds[number])
        assert encoder is not None
        one = prepared_of(media[encoder], images[number], beside=beside)
        if kinds[number] == "video" and "heard" in golden_media_of(name):
            watched = one
            continue
        if watched is not None:
            encoder = encoder_of(media, "video")
            assert encoder is not None
            video = media[encoder].video
            assert video is not None
            assert video.woven is not None
            one, watched = video.woven(watched, one), None
        for part in one.parts:
            own = encoder_of(media, part.kind)
            made.append(with_digest(part, "", encoder if own is None else own))
    return made


@functools.cache
def _everything() -> Path:
    """Removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="sax-media-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
