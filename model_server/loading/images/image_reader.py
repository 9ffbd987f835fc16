"""Reads images, videos and sounds for a language model: decodes, prepares and keeps them.

Files are decoded in processes of their own and prepared on threads, so that none holds up the event
loop. The same file, sent again or by several requests at once, is read once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from model_server.loading.images.decoders import (
    ImageDecoder,
    check_av,
    check_pillow,
    check_soundfile,
    image_decoder,
    sound_decoder,
    video_decoder,
)
from model_server.loading.images.prepared import LivingImages, PreparedImage, key_of, with_digest
from model_server.models.media.media_recipe import (
    DecodedVideo,
    MediaRecipe,
    PreparedMedia,
    VideoRecipe,
    encoder_of,
)
from model_server.sharing.audio.process import SoundForm
from sax.chat import Image, Video
from sax.errors import InvalidRequest, QueueFull

Parts = tuple[PreparedImage, ...]  # of one image, sound or video, each encoded by itself

_KEPT = 256 << 20  # bytes of prepared images that no request needs
_LIVING = 1 << 30  # bytes of prepared images that requests and the cache hold
_WAITING = 256 << 20  # bytes of files that wait to be read
_AT_ONCE = 4
_RETRY_S = 1.0


class ImageReader:
    """Runs on the event loop."""

    def __init__(
        self,
        recipes: Sequence[MediaRecipe],
        decoder: ImageDecoder | None = None,
        *,
        kept: int = _KEPT,
        living: int = _LIVING,
        waiting: int = _WAITING,
    ) -> None:
        """decoder: of images; None: the process's own. kept, living, waiting: bytes."""
        self.recipes = tuple(recipes)
        self.living = LivingImages(living)
        self._decode = [_decoding(each, decoder) for each in recipes]
        self._threads = ThreadPoolExecutor(2, "images")
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._reading: dict[bytes, asyncio.Task[Parts]] = {}
        self._cache: OrderedDict[bytes, Parts] = OrderedDict()
        self._kept, self._most_waiting, self._waiting = kept, waiting, 0

    async def read(self, images: Sequence[Image], owner: str = "") -> tuple[Parts, ...]:
        """Return the parts of each image, prepared. owner: who shares what is kept of them.

        Raises InvalidRequest naming an image that cannot be decoded, QueueFull, Unavailable.
        """
        mixed = len({encoder_of(self.recipes, image.kind) for image in images}) > 1
        return tuple(await asyncio.gather(*(self._read(image, owner, mixed) for image in images)))

    async def _read(self, image: Image, owner: str, mixed: bool) -> Parts:
        """mixed: the prompt has media of several encoders."""
        loop = asyncio.get_running_loop()
        heard = "heard " if isinstance(image, Video) and image.heard else ""
        whose = f"{heard}{image.kind} {'of several ' * mixed}{owner}"
        key = await loop.run_in_executor(self._threads, key_of, image.data, whose)
        if (found := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            return found
        if (task := self._reading.get(key)) is None:
            self._enter(len(image.data))
            task = self._reading[key] = asyncio.create_task(self._prepared(image, owner, mixed))
            task.add_done_callback(lambda done: self._end(key, len(image.data), done))
        try:
            # A caller who leaves does not stop what others wait for, too.
            return await asyncio.shield(task)
        except InvalidRequest as exc:
            raise InvalidRequest(f"{image.name}: {exc.text}", param=image.name) from exc

    def _enter(self, size: int) -> None:
        """Raise QueueFull if too much waits or lives."""
        if self._waiting and self._waiting + size > self._most_waiting:
            raise QueueFull(
                f"{self._waiting >> 20} MiB of images wait to be read, all that this model "
                f"holds; retry in {_RETRY_S:.0f} s",
                retry_after_s=_RETRY_S,
            )
        if self.living.full:
            self._cache.clear()
        self.living.check()
        self._waiting += size

    async def _prepared(self, image: Image, owner: str, mixed: bool) -> Parts:
        async with self._turns:
            encoder = encoder_of(self.recipes, image.kind)
            assert encoder is not None, "the kinds of media are checked"
            made = await self._made(image, encoder, mixed)
            loop = asyncio.get_running_loop()
            parts = await loop.run_in_executor(
                self._threads, lambda: self._parts(made(), owner, encoder)
            )
        for part in parts:
            self.living.add(part)
        return parts

    async def _made(self, image: Image, encoder: int, mixed: bool) -> Callable[[], PreparedMedia]:
        """Decode an image and return what prepares it, which takes a while."""
        recipe = self.recipes[encoder]
        if isinstance(image, Video):
            assert recipe.video is not None, "the kinds of media are checked"
            return await self._video(image, recipe.video)
        decoded = await self._decode[encoder](image.data)
        prepare = (recipe.beside if mixed else None) or recipe.prepare
        return lambda: prepare(decoded)

    async def _video(self, video: Video, recipe: VideoRecipe) -> Callable[[], PreparedMedia]:
        check_av()
        woven = recipe.woven if video.heard else None
        if woven is None:
            decoded = await _watched(video.data, recipe, 0)
            return lambda: recipe.prepare(decoded)
        number = encoder_of(self.recipes, "audio")
        assert number is not None, "what a model hears is checked"
        sounds = self.recipes[number]
        both = await _watched(video.data, recipe, sounds.seconds)
        samples = both.samples
        assert samples is not None, "they were asked for"
        return lambda: woven(recipe.prepare(both), sounds.prepare(samples))

    def _parts(self, media: PreparedMedia, owner: str, own: int) -> Parts:
        """own: number of the medium's encoder."""
        numbers = (encoder_of(self.recipes, part.kind) for part in media.parts)
        each = (own if number is None else number for number in numbers)
        pairs = zip(media.parts, each, strict=True)
        return tuple(with_digest(part, owner, encoder) for part, encoder in pairs)

    def _end(self, key: bytes, size: int, done: asyncio.Task[Parts]) -> None:
        del self._reading[key]
        self._waiting -= size
        if not done.cancelled() and done.exception() is None:
            self._keep(key, done.result())

    def _keep(self, key: bytes, parts: Parts) -> None:
        if _size(parts) > self._kept:
            return
        self._cache[key] = parts
        while sum(map(_size, self._cache.values())) > self._kept:
            self._cache.popitem(last=False)


def image_reader(recipes: Sequence[MediaRecipe]) -> ImageReader | None:
    """Return the reader of a model's images and sounds; None: it takes none. Raises LoadFailed
    without the package that decodes them."""
    for recipe in recipes:
        check = check_soundfile if recipe.kind == "audio" else check_pillow
        check(f", or publish the model with {recipe.override}=false, without {recipe.many}")
    return ImageReader(recipes) if recipes else None


async def _watched(data: bytes, recipe: VideoRecipe, seconds: int) -> DecodedVideo:
    """seconds: of its sound at most; 0: its frames alone."""
    return await asyncio.wrap_future(video_decoder().submit(data, recipe.form, seconds))


def _size(parts: Parts) -> int:
    """Return the bytes of all pieces."""
    return sum(part.size for part in parts)


def _decoding(
    recipe: MediaRecipe, decoder: ImageDecoder | None
) -> Callable[[bytes], Awaitable[np.ndarray]]:
    """Return how a file becomes pixels u8[h, w, 3], or samples f32[n] at 16 kHz."""
    if (form := recipe.form) is not None:
        images = decoder or image_decoder()
        return lambda data: asyncio.wrap_future(images.submit(data, form))
    sounds, samples = sound_decoder(), SoundForm(0, 0, recipe.seconds)

    async def decode(data: bytes) -> np.ndarray:
        return (await asyncio.wrap_future(sounds.submit(data, samples))).mels

    return decode
