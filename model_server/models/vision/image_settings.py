"""Reads preprocessor_config.json: how a checkpoint's images are resized, cut and scaled.

Read is what transformers' ConvNextImageProcessor has, with which ResNets are published: the shorter
side is resized to size / crop_pct and a square of `size` is cut from the middle; from 384 pixels on
an image is squeezed to the square instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from model_server.checkpoints.files import read_json
from model_server.models.vision.vision_recipe import Colours, ImageSettings
from model_server.sharing.images.forms import BICUBIC, SquareForm
from sax.errors import CheckpointError

FILE = "preprocessor_config.json"
_PROCESSOR = "ConvNext"  # how names of its processors begin: ...ImageProcessor, ...FeatureExtractor
_SQUEEZED_FROM = 384  # pixels
_MOST_SIZE = 1024
_RESAMPLES = range(6)  # Pillow's filters
_READ = {"crop_pct", "image_mean", "image_std", "resample", "rescale_factor", "size"}
_MUST = {"do_resize": True, "do_rescale": True, "do_normalize": True}
_MUST_NOT = {"do_center_crop": False, "do_pad": False}
_NAMES = {"feature_extractor_type", "image_processor_type", "processor_class", "data_format"}
_IGNORED = {*_NAMES, "do_convert_rgb", "default_to_square", "device", "disable_grouping"}
_IGNORED |= {"input_data_format", "return_tensors", "crop_size", "pad_size"}
# As they are trained on ImageNet.
IMAGENET = Colours(1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CROP = 224 / 256


def form_of(size: int, crop: float = _CROP, resample: int = BICUBIC) -> SquareForm:
    """Return the form of images of so many pixels a side."""
    shortest = int(size / crop) if size < _SQUEEZED_FROM else None
    return SquareForm(size, shortest, resample)


def read_image_settings(folder: Path | None, size: int | None) -> ImageSettings:
    """Read a checkpoint's file; size: instead of its own. Raises CheckpointError."""
    path = None if folder is None else folder / FILE
    if path is None or not path.exists():
        raise CheckpointError(
            f"the checkpoint has no {FILE}, which says how images are resized and scaled: put it "
            "beside config.json"
        )
    return image_settings(read_json(path), size)


def image_settings(config: Mapping[str, Any], size: int | None) -> ImageSettings:
    """Parse the file. Raises CheckpointError naming a key."""
    _check(config)
    own = size or _size(config)
    crop, resample = config.get("crop_pct"), config.get("resample", BICUBIC)
    crop = _CROP if crop is None else _number(config, "crop_pct")
    if not 0.1 <= crop <= 1:
        raise _wrong(config, "crop_pct", "a share from 0.1 to 1")
    if type(resample) is not int or resample not in _RESAMPLES:
        raise _wrong(config, "resample", "a number from 0 to 5")
    scale = _number(config, "rescale_factor") if "rescale_factor" in config else 1 / 255
    mean, deviation = (_colours(config, key) for key in ("image_mean", "image_std"))
    if not all(deviation):
        raise _wrong(config, "image_std", "numbers other than 0")
    return ImageSettings(form_of(own, crop, resample), Colours(scale, mean, deviation))


def _check(config: Mapping[str, Any]) -> None:
    for key in ("image_processor_type", "feature_extractor_type"):
        if not str(config.get(key) or _PROCESSOR).startswith(_PROCESSOR):
            raise _wrong(config, key, f"the processors of {_PROCESSOR}")
    for key, wanted in (_MUST | _MUST_NOT).items():
        if config.get(key) not in (None, wanted):
            raise _wrong(config, key, json.dumps(wanted))
    unknown = sorted(set(config) - _READ - _IGNORED - {*_MUST, *_MUST_NOT})
    if unknown:
        raise CheckpointError(
            f"{FILE} has keys that are not supported: {', '.join(unknown)}; if they change "
            "nothing, remove them"
        )


def _size(config: Mapping[str, Any]) -> int:
    size: Any = config.get("size")
    if isinstance(size, dict):
        given = cast("dict[str, Any]", size)
        size = given.get("shortest_edge") if set(given) == {"shortest_edge"} else None
    if type(size) is not int or not 1 <= size <= _MOST_SIZE:
        raise _wrong(config, "size", f"a shortest_edge from 1 to {_MOST_SIZE}")
    return size


def _number(config: Mapping[str, Any], key: str) -> float:
    value = config.get(key)
    if type(value) not in (int, float):
        raise _wrong(config, key, "a number")
    return float(cast("float", value))


def _colours(config: Mapping[str, Any], key: str) -> tuple[float, ...]:
    value: Any = config.get(key)
    if not isinstance(value, list) or len(cast("list[Any]", value)) != 3:
        raise _wrong(config, key, "a number for each of red, green and blue")
    if not all(type(each) in (int, float) for each in cast("list[Any]", value)):
        raise _wrong(config, key, "a number for each of red, green and blue")
    return tuple(map(float, cast("list[float]", value)))


def _wrong(config: Mapping[str, Any], key: str, wanted: str) -> CheckpointError:
    return CheckpointError(f"{FILE} has {key} = {config.get(key)!r}; supported: {wanted}")
