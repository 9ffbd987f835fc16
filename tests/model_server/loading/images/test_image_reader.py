"""Images and sounds are read once, kept by content and owner, and bounded while they live."""

from __future__ import annotations

import asyncio
import gc
import io
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from model_server.loading.images.image_reader import ImageReader
from model_server.models.media.media_recipe import PreparedMedia
from sax.chat import Image, Sound
from sax.errors import InvalidRequest, QueueFull
from tests.model_server.fake_image_input import RECIPE, picture, prepare

A, B = Image(picture(1, 2, 3, 4), "a"), Image(picture(5, 6, 7, 8), "b")
SIZE = 4 * (4 + 4)  # bytes of one image's pieces and places


class Counting:
    def __init__(self) -> None:
        self.prepared = 0

    def __call__(self, pixels: np.ndarray) -> PreparedMedia:
        self.prepared += 1
        return prepare(pixels)


def test_the_same_file_is_read_once_however_often_it_comes() -> None:
    count = Counting()

    async def read() -> None:
        reader = ImageReader([replace(RECIPE, prepare=count)])
        first, second, third = await reader.read([A, A, B])
        (again,) = await reader.read([A])
        assert first is second is again
        assert third[0].digest != first[0].digest
        assert np.frombuffer(first[0].pieces, "<f4").tolist() == [1, 2, 3, 4]

    asyncio.run(read())
    assert count.prepared == 2


def test_two_owners_share_neither_an_image_nor_its_digest() -> None:
    async def read() -> None:
        reader = ImageReader([RECIPE])
        ((mine,),), ((yours,),) = await reader.read([A], "me"), await reader.read([A], "you")
        assert mine.pieces == yours.pieces
        assert mine.digest != yours.digest

    asyncio.run(read())


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    count = Counting()

    async def read() -> None:
        reader = ImageReader([replace(RECIPE, prepare=count)], kept=SIZE)
        for image in (A, B, B, A):
            await reader.read([image])

    asyncio.run(read())
    assert count.prepared == 3


def test_images_that_live_are_bounded_and_the_cache_gives_way() -> None:
    async def read() -> None:
        reader = ImageReader([RECIPE], living=SIZE)
        held = await reader.read([A])
        with pytest.raises(QueueFull, match="MiB of images wait"):
            await reader.read([B])
        del held
        gc.collect()
        assert reader.living.held == 0
        await reader.read([A])  # only the cache holds it
        await reader.read([B])

    asyncio.run(read())


def prepare_sound(samples: np.ndarray) -> PreparedMedia:
    pieces = samples[:, None]
    places = np.zeros((len(pieces), 1), np.int32)
    return PreparedMedia(pieces, places, (1, 1, 1), 1, "[]")


HEARING = replace(RECIPE, kind="audio", form=None, prepare=prepare_sound, seconds=1)
SAMPLES = (np.round(np.sin(np.arange(4_000)) * 2**14) / 2**15).astype(np.float32)


def file_of(samples: np.ndarray, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


def test_samples_come_as_they_are_and_a_file_is_read_once() -> None:
    async def read() -> None:
        reader = ImageReader([HEARING])
        sound = Sound(file_of(SAMPLES), "a")
        first, second = await reader.read([sound, sound])
        assert first is second
        np.testing.assert_array_equal(np.frombuffer(first[0].pieces, "<f4"), SAMPLES)

    asyncio.run(read())


def test_a_sound_beside_images_is_prepared_as_such_and_kept_apart() -> None:
    doubled = replace(HEARING, beside=lambda samples: prepare_sound(2 * samples))

    async def read() -> None:
        reader = ImageReader([RECIPE, doubled])
        sound = Sound(file_of(SAMPLES), "a")
        ((alone,),) = await reader.read([sound])
        _, (beside,) = await reader.read([A, sound])
        ((again,),) = await reader.read([sound])
        np.testing.assert_array_equal(np.frombuffer(beside.pieces, "<f4"), 2 * SAMPLES)
        assert again is alone
        assert alone.digest != beside.digest

    asyncio.run(read())


def windows(samples: np.ndarray) -> PreparedMedia:
    first, second = map(prepare_sound, np.split(samples, 2))
    return first._replace(after=(second,))


def test_windows_of_a_sound_are_images_of_their_own_and_count_together() -> None:
    async def read() -> None:
        reader = ImageReader([replace(HEARING, prepare=windows)])
        (parts,) = await reader.read([Sound(file_of(SAMPLES), "a")])
        found = [np.frombuffer(part.pieces, "<f4") for part in parts]
        np.testing.assert_array_equal(found, SAMPLES.reshape(2, -1))
        assert len({part.digest for part in parts}) == 2
        assert reader.living.held == sum(part.size for part in parts)

    asyncio.run(read())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"no sound", "a: the sound is not a WAV, FLAC, MP3 or Ogg"),
        (file_of(np.zeros(16_001)), "at most 1 s of each; send it in parts"),
    ],
)
def test_a_sound_that_cannot_be_read_is_refused_by_its_name(data: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match="a: the sound") as caught:
        asyncio.run(ImageReader([HEARING]).read([Sound(data, "a")]))
    assert text in caught.value.text
    assert caught.value.param == "a"
