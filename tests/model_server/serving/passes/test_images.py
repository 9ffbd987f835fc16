"""A model of images between the decoder and its batches, with a decoder that waits."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import numpy as np
import pytest

from model_server.loading.images.decoders import ImageDecoder
from model_server.loading.vision.loaded_vision import LoadedVision
from model_server.serving.batch_servable import BatchServable
from model_server.serving.passes.images import seen
from model_server.sharing.images.forms import ImageForm
from sax.errors import NotLoaded
from tests.model_server.fake_batched import fake_vision

Eye = BatchServable[LoadedVision]
PIXELS = np.full((4, 4, 3), 7, np.uint8)


class HeldDecoder(ImageDecoder):
    """Decodes an image when the test says so."""

    def __init__(self) -> None:
        super().__init__(lanes=0)
        self.held: list[Future[np.ndarray]] = []

    def submit(self, image: bytes, form: ImageForm) -> Future[np.ndarray]:
        self.held.append(future := Future())
        return future


@pytest.fixture
def decoder() -> HeldDecoder:
    return HeldDecoder()


@pytest.fixture
async def servable() -> Eye:
    (gate := threading.Event()).set()
    return BatchServable("/sax/test/eye", fake_vision(gate))


async def test_an_unload_lets_images_finish_that_are_being_decoded(
    servable: Eye, decoder: HeldDecoder
) -> None:
    seeing = asyncio.create_task(seen(servable, b"image", decoder=decoder))
    await asyncio.sleep(0)
    closing = asyncio.create_task(servable.close(drain_s=30))
    await asyncio.sleep(0)
    assert (servable.waiting, closing.done()) == (1, False)
    decoder.held[0].set_result(PIXELS)
    assert (await seeing).vector.tolist() == [7, 7, 7]
    await closing
    assert servable.waiting == 0


async def test_an_unload_waits_no_longer_than_it_was_told(
    servable: Eye, decoder: HeldDecoder
) -> None:
    seeing = asyncio.create_task(seen(servable, b"image", decoder=decoder))
    await asyncio.sleep(0)
    await servable.close(drain_s=0.01)
    decoder.held[0].set_result(PIXELS)
    with pytest.raises(NotLoaded):
        await seeing


async def test_a_caller_that_goes_away_takes_its_image_back(
    servable: Eye, decoder: HeldDecoder
) -> None:
    seeing = asyncio.create_task(seen(servable, b"image", decoder=decoder))
    await asyncio.sleep(0)
    seeing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await seeing
    assert decoder.held[0].cancelled()
    assert servable.waiting == 0
    await servable.close(drain_s=0)
