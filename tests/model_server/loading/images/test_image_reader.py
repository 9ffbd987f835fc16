"""Images are read once, kept by their content and owner, and bounded while they live."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import numpy as np
import pytest

from model_server.loading.images.image_reader import ImageReader
from model_server.models.media.media_recipe import PreparedMedia
from sax.chat import Image
from sax.errors import QueueFull
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
        reader = ImageReader(replace(RECIPE, prepare=count))
        first, second, third = await reader.read([A, A, B])
        (again,) = await reader.read([A])
        assert first is second is again
        assert third.digest != first.digest
        assert np.frombuffer(first.pieces, "<f4").tolist() == [1, 2, 3, 4]

    asyncio.run(read())
    assert count.prepared == 2


def test_two_owners_share_neither_an_image_nor_its_digest() -> None:
    async def read() -> None:
        reader = ImageReader(RECIPE)
        (mine,), (yours,) = await reader.read([A], "me"), await reader.read([A], "you")
        assert mine.pieces == yours.pieces
        assert mine.digest != yours.digest

    asyncio.run(read())


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    count = Counting()

    async def read() -> None:
        reader = ImageReader(replace(RECIPE, prepare=count), kept=SIZE)
        for image in (A, B, B, A):
            await reader.read([image])

    asyncio.run(read())
    assert count.prepared == 3


def test_images_that_live_are_bounded_and_the_cache_gives_way() -> None:
    async def read() -> None:
        reader = ImageReader(RECIPE, living=SIZE)
        held = await reader.read([A])
        with pytest.raises(QueueFull, match="MiB of images wait"):
            await reader.read([B])
        del held
        gc.collect()
        assert reader.living.held == 0
        await reader.read([A])  # only the cache holds it
        await reader.read([B])

    asyncio.run(read())
