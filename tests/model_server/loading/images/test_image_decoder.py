"""Images of strangers: decoded in another process, or refused in words."""

from __future__ import annotations

import os
import signal
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from model_server.loading.images.decoders import ImageDecoder
from model_server.sharing.confined.process import ProcessEnded
from model_server.sharing.images.forms import (
    ImageForm,
    LongestForm,
    MultiplesForm,
    SquareForm,
    TilesForm,
)
from model_server.sharing.images.process import MAX_PIXELS, ImageAsk, ImageProcess
from model_server.sharing.images.worker import answer, decoded
from sax.errors import InvalidRequest, QueueFull
from tests.each_case import each_case

FORM = SquareForm(size=16, shortest=None, resample=0)


def picture(width: int = 16, height: int = 16, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    into = BytesIO()
    image.save(into, kind, **options)
    return into.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)


def headed(width: int, height: int) -> bytes:
    """A PNG that says its size and holds next to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def decoder() -> ImageDecoder:
    return ImageDecoder(lanes=1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 95, "subsampling": 0})],
)
def test_every_kind_of_file_is_decoded(
    decoder: ImageDecoder, kind: str, options: dict[str, Any]
) -> None:
    image = picture().resize((64, 64), Image.Resampling.BICUBIC)
    form = SquareForm(size=64, shortest=None, resample=0)
    got = decoder.submit(encoded(image, kind, **options), form).result()
    assert got.shape == (64, 64, 3)
    off = np.abs(got.astype(int) - np.asarray(image).astype(int))
    assert off.mean() < 5 if kind == "JPEG" else not off.any()


@pytest.mark.parametrize(
    ("form", "shape"),
    [(SquareForm(16, 20, 3), (16, 16, 3)), (MultiplesForm(28, 56 * 56, 10**6), (84, 140, 3))],
)
def test_an_image_is_answered_in_the_size_of_its_form(
    decoder: ImageDecoder, form: ImageForm, shape: tuple[int, ...]
) -> None:
    assert decoder.submit(encoded(picture(130, 90)), form).result().shape == shape


def test_grey_and_transparent_images_become_rgb_and_a_turned_one_is_set_upright(
    decoder: ImageDecoder,
) -> None:
    grey = picture().convert("L")
    got = decoder.submit(encoded(grey), FORM).result()
    assert (got == np.asarray(grey)[..., None]).all()
    clear = decoder.submit(encoded(picture().convert("RGBA")), FORM).result()
    assert (clear == np.asarray(picture())).all()
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    turned = decoder.submit(encoded(picture(), exif=exif), FORM).result()
    assert (turned == np.rot90(np.asarray(picture()), -1)).all()


def _clear(mode: str) -> Image.Image:
    """An image that is red at the left, and clear or nearly so at the right."""
    image = Image.new("RGBA", (16, 16), (200, 0, 0, 255))
    image.paste((0, 0, 99, 51), (8, 0, 16, 16))
    return image if mode == "RGBA" else image.convert(mode)


def _keyed(mode: str) -> bytes:
    """A PNG whose right half has the one color that is clear."""
    image = Image.new(mode, (16, 16), 1)
    image.paste(0, (8, 0, 16, 16))
    if mode == "P":
        image.putpalette([0, 0, 99, 200, 0, 0])
    return encoded(image, transparency=0)


@each_case(
    "data, colors",
    [
        (encoded(_clear("RGBA")), [(200, 0, 0), (204, 204, 224)]),
        (encoded(_clear("RGBA"), "WEBP", lossless=True), [(200, 0, 0), (204, 204, 224)]),
        (encoded(_clear("LA")), [(60, 60, 60), (206, 206, 206)]),
        (_keyed("P"), [(200, 0, 0), (255, 255, 255)]),
        (_keyed("L"), [(1, 1, 1), (255, 255, 255)]),
        (encoded(Image.new("RGB", (16, 16)), transparency=(0, 0, 0)), [(255, 255, 255)] * 2),
    ],
)
def test_white_shows_through_an_image(data: bytes, colors: list[tuple[int, ...]]) -> None:
    """As in transformers' convert_to_rgb: here 51 of 255 parts are of the color."""
    pixels = np.asarray(decoded(data))
    assert [tuple(pixels[0, column].tolist()) for column in (0, 15)] == colors


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "text": (lambda: b"hello", "is not a JPEG, PNG or WebP file"),
    "gif": (lambda: encoded(picture(), "GIF"), "is not a JPEG, PNG or WebP file"),
    "cut jpeg": (lambda: _cut(encoded(picture(99, 99), "JPEG")), "is damaged: .*truncated"),
    "cut png": (lambda: _cut(encoded(picture(99, 99))), "is damaged"),
    "cut webp": (lambda: _cut(encoded(picture(99, 99), "WEBP")), "is not|is damaged"),
    "bomb": (lambda: headed(50_000, 50_000), f"at most {MAX_PIXELS // 10**6} million"),
    "large": (lambda: headed(8000, 7000), f"at most {MAX_PIXELS // 10**6} million"),
    "holes": (lambda: headed(3000, 3000), "is damaged"),
    "film": (
        lambda: encoded(picture(), "WEBP", save_all=True, append_images=[picture(seed=1)]),
        "is an animation",
    ),
}


def test_a_bad_image_is_refused_in_words(decoder: ImageDecoder) -> None:
    for make, words in BAD.values():
        with pytest.raises(InvalidRequest, match=f"^the image .*{words}") as caught:
            decoder.submit(make(), FORM).result()
        assert caught.value.param == "image_bytes"
        assert decoder.submit(encoded(picture()), FORM).result().shape == (16, 16, 3)


THREADS: list[tuple[ImageForm, int | None]] = [
    (SquareForm(16, 20, 0), 100),
    (MultiplesForm(4, 16, 4096), 200),
    (FORM, None),
    (LongestForm(4, 64), None),
    (TilesForm(14, 4), None),
]


@pytest.mark.parametrize(("form", "most"), THREADS)
def test_how_long_and_thin_an_image_may_be_is_what_its_models_processor_says(
    decoder: ImageDecoder, form: ImageForm, most: int | None
) -> None:
    """Qwen's processor refuses 200 to 1; those that cut a square are spared the rest."""
    pixels = decoder.submit(encoded(picture(2 * (most or 1500), 2)), form).result()
    width, height = form.fit(2 * (most or 1500), 2).size
    assert pixels.shape == (height, width, 3)
    if most is not None:
        with pytest.raises(InvalidRequest, match=f"one side may be at most {most} times"):
            decoder.submit(encoded(picture(2 * most + 1, 2)), form).result()


@given(
    st.sampled_from(["PNG", "JPEG", "WEBP"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=9)), min_size=1),
)
@settings(deadline=None, max_examples=60)
def test_bytes_that_were_changed_anywhere_give_pixels_or_words(
    kind: str, changes: list[tuple[float, bytes]]
) -> None:
    data = bytearray(encoded(picture(40, 30), kind))
    for place, put in changes:
        at = int(place * len(data))
        data[at : at + len(put)] = put
    found = answer(ImageAsk(bytes(data), FORM))
    assert (found.kind, len(found.pixels)) == ("pixels", 3 * FORM.size**2) or found.text


@pytest.mark.extended
def test_an_image_that_takes_too_long_ends_its_process_and_not_the_next_image() -> None:
    process = ImageProcess(0.05)
    process.start()
    ask = ImageAsk(encoded(Image.new("RGB", (7000, 7000))), FORM)
    with pytest.raises(ProcessEnded, match="of processor time and was stopped"):
        process.answer(ask)
    process.stop()


def test_more_images_than_the_server_holds_are_turned_away() -> None:
    decoder = ImageDecoder(lanes=0, waiting=1000)  # nobody decodes
    first = decoder.submit(b"x" * 900, FORM)
    with pytest.raises(QueueFull, match="retry in 1 s"):
        decoder.submit(b"x" * 101, FORM)
    decoder.submit(b"x" * 100, FORM)
    first.cancel()  # its caller went away
    decoder.submit(b"x" * 900, FORM)


def test_a_killed_process_is_replaced() -> None:
    process = ImageProcess()
    ask = ImageAsk(encoded(picture()), FORM)
    assert process.answer(ask).kind == "pixels"
    running = process._process  # pyright: ignore[reportPrivateUsage]
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert process.answer(ask).kind == "pixels"
    process.stop()
