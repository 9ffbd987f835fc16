"""Sounds of chats are decoded apart, read once, and refused by the name of their place."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from model_server.loading.images.image_reader import ImageReader
from model_server.models.media.media_recipe import PreparedMedia
from sax.chat import Sound
from sax.errors import InvalidRequest
from tests.model_server.fake_image_input import RECIPE


def prepare(samples: np.ndarray) -> PreparedMedia:
    pieces = samples[:, None]
    places = np.zeros((len(pieces), 1), np.int32)
    return PreparedMedia(pieces, places, (1, 1, 1), 1, "[]")


HEARING = replace(RECIPE, kind="audio", form=None, prepare=prepare, seconds=1)
SAMPLES = (np.round(np.sin(np.arange(4_000)) * 2**14) / 2**15).astype(np.float32)


def file_of(samples: np.ndarray, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()


def test_samples_come_as_they_are_and_a_file_is_read_once() -> None:
    async def read() -> None:
        reader = ImageReader(HEARING)
        sound = Sound(file_of(SAMPLES), "a")
        first, second = await reader.read([sound, sound])
        assert first is second
        np.testing.assert_array_equal(np.frombuffer(first.pieces, "<f4"), SAMPLES)

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
        asyncio.run(ImageReader(HEARING).read([Sound(data, "a")]))
    assert text in caught.value.text
    assert caught.value.param == "a"
