"""Image and video input of Qwen2-VL and its successors: the recipe around a tower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from model_server.checkpoints.media_part import FILE, PREPROCESSOR, VIDEO, VIDEO_FILE, VISION
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import Harmless, ignored
from model_server.models.media.image_processor import ImageProcessor, Scales
from model_server.models.media.media_recipe import (
    DecodedVideo,
    MediaRecipe,
    PreparedMedia,
    VideoRecipe,
)
from model_server.models.media.qwen.tower import QwenTower, TowerShape
from model_server.sharing.images.forms import BICUBIC, ImageForm, MultiplesForm
from model_server.sharing.videos.process import VideoForm
from sax.errors import CheckpointError, InvalidRequest

# Cuts images into patches, in the order in which Qwen's vision towers merge them into vectors.
#
# Patches of one vector lie next to each other: squares of `merge` by `merge` patches in reading
# order, and within each the patches in reading order. The convolution over patches spans two
# frames of a video; an image is both of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchGrid:
    """Prepares the pixels of an image for a tower."""

    patch: int  # pixels of a side
    merge: int  # patches of a side that become one vector
    frames: int  # of a patch
    scales: Scales
    most: int  # patches of an image
    token: str  # text of the token whose places the vectors take
    window: int | None = None  # vectors of a window's side; None: the tower has no windows
    marks: tuple[str, str] = ("", "")  # texts before and behind the tokens of an image
    together: int = 1  # patches of a video, one after the other in time, that see each other
    merged_time: bool = False  # vectors of these become one
    timed: bool = False  # places also tell their number and how many they are

    @property
    def columns(self) -> int:
        """Numbers of a place."""
        return 6 if self.timed else 4

    @property
    def numbers(self) -> int:
        """Numbers of a patch."""
        return 3 * self.frames * self.patch**2

    def __call__(self, pixels: np.ndarray) -> PreparedMedia:
        """Cut u8[h, w, 3], whose sides are whole squares. Raises InvalidRequest."""
        scaled = self.scales.of(pixels)
        made = self._prepared("image", self.token, [[scaled] * self.frames])
        return made._replace(text=made.text.join(self.marks))

    def video(self, decoded: DecodedVideo, timing: Timing, token: str) -> PreparedMedia:
        """Cut the frames of a video, as many together as a part has. Raises InvalidRequest.

        token: text of the token whose places the vectors take.
        """
        spare = -len(decoded.frames) % self.frames  # the last frame once more
        numbers = [*range(len(decoded.frames)), *[len(decoded.frames) - 1] * spare]
        each = self.frames * self.together
        groups = [numbers[start : start + each] for start in range(0, len(numbers), each)]
        first, *after = (
            timing(self._of_frames(decoded, group, token), decoded, group, at)
            for at, group in enumerate(groups)
        )
        return first._replace(after=tuple(after))

    def _of_frames(self, decoded: DecodedVideo, group: list[int], token: str) -> PreparedMedia:
        scaled = [self.scales.of(decoded.frames[number]) for number in group]
        starts = range(0, len(scaled), self.frames)
        return self._prepared("video", token, [scaled[at : at + self.frames] for at in starts])

    def _prepared(
        self, what: str, token: str, times: Sequence[Sequence[np.ndarray]]
    ) -> PreparedMedia:
        """Cut f32[h, w, 3], for each time as many as a patch has frames. Raises InvalidRequest."""
        height, width = (side // (self.patch * self.merge) for side in times[0][0].shape[:2])
        patches = height * width * self.merge**2 * len(times)
        if patches > self.most:
            raise InvalidRequest(
                f"the {what} becomes {patches} patches, and this model was loaded for "
                f"{self.most}: send one whose sides differ less"
            )
        seen = 1 if self.merged_time else len(times)
        rows = height * width * seen
        return PreparedMedia(
            pieces=np.concatenate([self._patches(frames, height, width) for frames in times]),
            places=self._in_time(self._places(height, width), len(times)),
            grid=(seen, height, width),
            rows=rows,
            text=token * rows,
        )

    def _in_time(self, places: np.ndarray, times: int) -> np.ndarray:
        """i32[times * p, columns] of i32[p, 4]."""
        if not self.timed:
            return np.tile(places, (times, 1))
        at = np.repeat(np.arange(times, dtype=np.int32), len(places))
        return np.column_stack([np.tile(places, (times, 1)), at, np.full_like(at, times)])

    def _patches(self, frames: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
        """f32[p, C]: of each patch the colours, of each colour the frames, rows and columns."""
        shape = (height, self.merge, self.patch, width, self.merge, self.patch, 3)
        cut = [each.reshape(shape).transpose(0, 3, 1, 4, 6, 2, 5) for each in frames]
        both = np.stack(cut, axis=5)
        return np.ascontiguousarray(both.reshape(-1, self.numbers), np.float32)

    def _places(self, height: int, width: int) -> np.ndarray:
        """i32[p, 4]: row, column; then height and width, or the order and number of windows."""
        each = np.indices((height * self.merge, width * self.merge))  # [2, rows, columns]
        squares = each.reshape(2, height, self.merge, width, self.merge).transpose(0, 1, 3, 2, 4)
        row, column = squares.reshape(2, -1)
        if self.window is None:
            rest = np.full_like(row, height * self.merge), np.full_like(row, width * self.merge)
        else:
            rest = _windows(height, width, self.window, self.merge**2)
        return np.stack([row, column, *rest], axis=1).astype(np.int32)


def _windows(height: int, width: int, side: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """The patches i[p] one window after the other, and the window i[p] of each of them."""
    rows, columns = np.indices((height, width)).reshape(2, -1) // side
    window = rows * -(-width // side) + columns
    order = np.argsort(window, kind="stable")
    patches = (order[:, None] * each + np.arange(each)).reshape(-1)
    return patches, np.repeat(window[order], each)


# Keys of config.json beside those of the text model.
OUTER = (VISION, PREPROCESSOR, VIDEO, "image_token_id", "video_token_id")
# Tokens that a prompt's template writes.
TOKENS: Harmless = ignored("vision_end_token_id", "vision_start_token_id", "vision_token_id")
_USUAL_VECTORS = 1280  # of an image at most
_TOKEN, _VIDEO_TOKEN, _START, _END = (
    f"<|{name}|>" for name in ("image_pad", "video_pad", "vision_start", "vision_end")
)
_TOKEN_IDS = (151655, 151656)
_VIDEO_READ = ("min_pixels", "max_pixels", "size", "fps", "min_frames", "max_frames")
_VIDEO_READ += ("cap_pixels_per_frame", "max_video_tokens")
# Frames are always chosen by their number a second, and processors are asked for nothing else.
_VIDEO_HARMLESS = ("do_sample_frames", "return_metadata")
_LEAST_PATCHES = 1024  # of a batch that is compiled: smaller ones save little
_MOST_PIXELS = 2**31
_LEAST, _MOST = ("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")  # of `size`


# What published checkpoints say of their images, for those without the file.
CLIP: Mapping[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "size": {"shortest_edge": 56 * 56, "longest_edge": 16384 * 28 * 28},
}
HALVES: Mapping[str, Any] = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096},
}


# Gives a part of a video its place in time: from the part, the video, and the numbers of its frames
# and of the part.
Timing = Callable[[PreparedMedia, DecodedVideo, list[int], int], PreparedMedia]


def apart(per_second: int | None) -> Timing:
    """Return how parts follow each other without texts, further apart the more time is between
    them; None: by one.

    per_second: positions of a second.
    """

    def timed(part: PreparedMedia, video: DecodedVideo, group: list[int], at: int) -> PreparedMedia:
        if not at:
            return part
        rate = len(video.indices) / video.total * video.rate  # frames a second of those taken
        # The reference computes in float32.
        step = 1 if per_second is None else np.float32(per_second) * np.float32(len(group) / rate)
        return part._replace(frame=int(np.float32(at) * np.float32(step)))

    return timed


def evenly(per_second: int, rate: float) -> Timing:
    """Return how parts follow each other as if so many frames of every second were taken, as the
    Omni models count time whatever the video's rate is; what follows goes on behind the last part.

    per_second: positions of a second. rate: frames a second.
    """

    def at_of(part: int, frames: int) -> int:
        return int(np.float32(part) * np.float32(frames / rate) * np.float32(per_second))

    def timed(part: PreparedMedia, video: DecodedVideo, group: list[int], at: int) -> PreparedMedia:
        if at:
            return part._replace(frame=at_of(at, len(group)))
        assert part.grid is not None, "frames have one"
        last = at_of(-(-len(video.frames) // len(group)) - 1, len(group))
        return part._replace(lasts=max(*part.grid[1:], last + 1))

    return timed


def told(part: PreparedMedia, video: DecodedVideo, group: list[int], at: int) -> PreparedMedia:
    """Return a part with a text that tells its time, the mean of its first and last frame."""
    first, last = (video.indices[number] / video.rate for number in (group[0], group[-1]))
    return part._replace(text=f"<{(first + last) / 2:.1f} seconds>{_START}{part.text}{_END}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenKind:
    """How a family prepares images and videos where its files do not say."""

    image: Mapping[str, Any]  # of preprocessor_config.json
    video: Mapping[str, Any]  # of video_preprocessor_config.json
    processor: str  # of videos: how the names of its type begin
    timing: Callable[[ConfigKeys], Timing]  # from the keys of vision_config
    triples: bool = True  # positions are three numbers: frame, row, column
    together: bool = False  # bounds of a video count the pixels of all frames
    share: int = 128_000  # tokens by which frames are bounded if the file asks for it
    tokens: tuple[int, int] = _TOKEN_IDS  # of images and videos, if config.json does not say
    texts: tuple[str, str] = (_TOKEN, _VIDEO_TOKEN)  # of the same tokens


_SQUARE_2, _SQUARE_3 = 28 * 28, 32 * 32  # pixels of a vector
QWEN2 = QwenKind(
    image=CLIP,
    video={**CLIP, "size": {"shortest_edge": 128 * _SQUARE_2, "longest_edge": 768 * _SQUARE_2}},
    processor="Qwen2VL",
    timing=lambda _: apart(None),
)
QWEN3 = QwenKind(
    image=HALVES,
    video={**HALVES, "size": {"shortest_edge": 128 * _SQUARE_3, "longest_edge": 768 * _SQUARE_3}},
    processor="Qwen3VL",
    timing=lambda _: told,
    together=True,
    share=768,
)


def qwen_vision(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    tower: Callable[[ConfigKeys], TowerShape],
    kind: QwenKind,
    embed: int,
) -> MediaRecipe | None:
    """Return the recipe of the vision encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError, InvalidRequest.
    """
    if keys.get(VISION) is None:
        return None
    shape = tower(keys)
    grid, form = _images(keys, values, shape, kind)
    made = tower_recipe(
        shape, grid, form, embed, keys.whole("image_token_id", kind.tokens[0], least=0)
    )
    return replace(made, triples=kind.triples, video=_videos(keys, shape, grid, kind))


def tower_recipe(
    shape: TowerShape, grid: PatchGrid, form: ImageForm, embed: int, token: int
) -> MediaRecipe:
    """Return a recipe of images alone, whose positions are those of a text.

    embed, token: of the language model. Raises CheckpointError.
    """
    if shape.out != embed:
        raise CheckpointError(
            f"vision_config makes vectors of {shape.out} numbers; those of the language model have "
            f"{embed}"
        )
    return MediaRecipe(
        kind="image",
        build=lambda weights: QwenTower(shape, weights),
        form=form,
        prepare=grid,
        placeholder=grid.token,
        token=token,
        piece=grid.numbers,
        columns=grid.columns,
        per_row=shape.merge**2,
        width=shape.out * (1 + len(shape.deep)),
        pieces=_sizes(grid.most, shape.merge**2),
        levels=len(shape.deep),
        marked=f"{_START}{_TOKEN}{_END}" if grid.token == _TOKEN else "",
    )


def _videos(keys: ConfigKeys, shape: TowerShape, grid: PatchGrid, kind: QwenKind) -> VideoRecipe:
    """Return how videos are prepared. Raises CheckpointError."""
    timing = kind.timing(keys)
    own = keys.get(VIDEO)
    # transformers, too, falls back to the file of images.
    given = own if own is not None else keys.get(PREPROCESSOR, {})
    given = {**kind.video, **without_nulls(given)}
    name = given.pop("video_processor_type", kind.processor)
    same = same_sizes(shape)
    read = ImageProcessor(
        given,
        kind.processor if own is not None else "Qwen2VL",
        (*same, *_VIDEO_READ, *_VIDEO_HARMLESS),
        file=VIDEO_FILE if own is not None else FILE,
    )
    if not str(name).startswith(kind.processor):
        raise read.wrong("video_processor_type", f"the processors of {kind.processor}")
    read.equal(same, "vision_config's")
    factor = grid.patch * grid.merge
    least, most = bounds_of(read, given)
    capped = read.flag("cap_pixels_per_frame")
    form = VideoForm(
        factor=factor,
        least=least,
        most=most,
        frame_most=grid.most * grid.patch**2,
        together=kind.together,
        temporal=grid.frames,
        rate=read.number("fps", 2.0),
        least_frames=read.whole("min_frames", 4, most=_MOST_PIXELS),
        most_frames=read.whole("max_frames", 768, least=grid.frames, most=_MOST_PIXELS),
        share=read.whole("max_video_tokens", kind.share, most=_MOST_PIXELS) if capped else 0,
        resample=read.resample(BICUBIC),
    )
    scales = replace(grid, scales=read.scales(0.5, 0.5))
    return VideoRecipe(
        form=form,
        prepare=lambda video: scales.video(video, timing, kind.texts[1]),
        placeholder=kind.texts[1],
        marked=f"{_START}{_VIDEO_TOKEN}{_END}" if timing is told else "",
        token=keys.whole("video_token_id", kind.tokens[1], least=0),
    )


def same_sizes(shape: TowerShape) -> dict[str, int]:
    """Return what the processors must say as the tower has it."""
    frames, patch = shape.frames, shape.patch[-1]
    return {"patch_size": patch, "temporal_patch_size": frames, "merge_size": shape.merge}


def _images(
    keys: ConfigKeys, values: Mapping[str, Any], shape: TowerShape, kind: QwenKind
) -> tuple[PatchGrid, MultiplesForm]:
    """Return how images are cut and resized. Raises CheckpointError, InvalidRequest."""
    given = {**kind.image, **without_nulls(keys.get(PREPROCESSOR, {}))}
    same = same_sizes(shape)
    read = ImageProcessor(given, "Qwen2VL", (*same, "min_pixels", "max_pixels", "size"))
    read.equal(same, "vision_config's")
    patch, frames = shape.patch[-1], shape.frames
    factor = patch * shape.merge
    least, most = bounds_of(read, given)
    most = most_pixels(values, most, factor**2)
    grid = PatchGrid(
        patch=patch,
        merge=shape.merge,
        frames=frames,
        scales=read.scales(0.5, 0.5),
        most=most // patch**2,
        token=kind.texts[0],
        window=shape.window,
    )
    return grid, MultiplesForm(factor, min(least, most), most, read.resample(BICUBIC))


def without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def bounds_of(read: ImageProcessor, given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the least and the most pixels of an image. Raises CheckpointError."""
    size: Any = given["size"]
    if not isinstance(size, Mapping) or not set(cast("Mapping[str, Any]", size)) <= {
        *_LEAST,
        *_MOST,
    }:
        raise read.wrong("size", "shortest_edge and longest_edge, numbers of pixels")
    found = without_nulls(cast("Mapping[str, Any]", size))
    least, most = (
        read.whole(
            key, min((found[each] for each in names if each in found), default=0), most=_MOST_PIXELS
        )
        for key, names in (("min_pixels", _LEAST), ("max_pixels", _MOST))
    )
    if least > most:
        raise read.wrong("size", "a shortest_edge of at most its longest_edge")
    return least, most


def most_pixels(values: Mapping[str, Any], most: int, each: int) -> int:
    """Return the most pixels of an image, whole squares of `each`. Raises InvalidRequest."""
    asked = values.get("IMAGE_PIXELS")
    if asked is not None and (type(asked) is not int or not each <= asked <= most):
        raise InvalidRequest(
            f"IMAGE_PIXELS is {asked!r}: give a whole number from {each}, the pixels of one "
            f"vector, to {most}, the most of the checkpoint",
            param="overrides.IMAGE_PIXELS",
        )
    return max(1, (asked or min(most, _USUAL_VECTORS * each)) // each) * each


def _sizes(most: int, each: int) -> tuple[int, ...]:
    """Patches of batches that are compiled, each at least half of the next one."""
    sizes = [most]
    while sizes[-1] > _LEAST_PATCHES:
        sizes.append(-(-sizes[-1] // (2 * each)) * each)
    return tuple(reversed(sizes))
