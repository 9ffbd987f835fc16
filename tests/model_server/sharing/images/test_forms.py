"""Sizes to which images are brought, and forms told by messages."""

from __future__ import annotations

import io

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from model_server.sharing.images.forms import (
    CropsForm,
    LongestForm,
    MultiplesForm,
    PatchesForm,
    SquareForm,
    TilesForm,
    grids,
)
from model_server.sharing.images.worker import prepared

# Width, height, factor, least and most pixels; width and height of transformers' smart_resize.
SMART = [
    ((640, 480, 28, 3136, 1003520), (644, 476)),
    ((480, 640, 28, 3136, 1003520), (476, 644)),
    ((4000, 3000, 28, 3136, 1003520), (1148, 840)),
    ((10, 10, 28, 3136, 1003520), (56, 56)),
    ((1000, 11, 28, 3136, 1003520), (560, 28)),
    ((42, 70, 28, 3136, 1003520), (56, 56)),
    ((9900, 99, 32, 65536, 16777216), (9888, 96)),
    ((300, 200, 32, 65536, 16777216), (320, 224)),
    ((2000, 25, 8, 64, 512), (200, 8)),
]


def test_sides_are_rounded_to_multiples_as_qwens_processor_does() -> None:
    for (width, height, factor, least, most), size in SMART:
        fit = MultiplesForm(factor, least, most).fit(width, height)
        assert (fit.size, fit.resized) == (size, size), (width, height)


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_sides_are_multiples_and_pixels_within_bounds(width: int, height: int) -> None:
    if max(width, height) > 100 * min(width, height):
        return
    form = MultiplesForm(28, 56 * 56, 1280 * 28 * 28)
    wide, high = form.fit(width, height).size
    assert (wide % 28, high % 28) == (0, 0)
    assert form.least <= wide * high <= form.most


def test_a_square_is_cut_from_the_middle_or_squeezed() -> None:
    assert SquareForm(16, 20, 3).fit(40, 80) == ((20, 40), (2, 12, 18, 28), None)
    assert SquareForm(16, None, 3).fit(40, 80) == ((16, 16), (0, 0, 16, 16), None)


# Width, height, factor and longest side; width and height of PixtralImageProcessor's.
LONGEST = [
    ((640, 480, 28, 1540), (644, 504)),
    ((1541, 1000, 28, 1540), (1540, 1008)),
    ((4000, 3000, 28, 1540), (1540, 1176)),
    ((10, 10, 28, 1540), (28, 28)),
    ((3000, 31, 16, 1024), (1024, 16)),
]


def test_the_longer_side_is_bounded_as_pixtrals_processor_does() -> None:
    for (width, height, factor, longest), size in LONGEST:
        fit = LongestForm(factor, longest).fit(width, height)
        assert (fit.size, fit.resized) == (size, size), (width, height)


def test_no_side_is_rounded_to_nothing() -> None:
    assert LongestForm(4, 20).fit(3000, 30).size == (20, 4)
    assert TilesForm(14, 4).fit(3000, 30).resized[1] >= 1


# Width, height, tile, most tiles, enlarged; the image's and the grid's size of Llama 4's processor.
TILES = [
    ((336, 336, 336, 16, False), ((336, 336), (336, 336))),
    ((640, 480, 336, 16, False), ((640, 480), (672, 672))),
    ((4000, 3000, 336, 16, False), ((1344, 1008), (1344, 1008))),
    ((100, 50, 336, 16, False), ((336, 168), (336, 336))),
    ((100, 50, 336, 16, True), ((1680, 839), (1680, 1008))),
    ((27, 9, 336, 16, True), ((2015, 672), (2016, 672))),
    ((12, 54, 14, 5, True), ((14, 62), (14, 70))),
    ((300, 1000, 14, 4, False), ((14, 46), (14, 56))),
]


def test_an_image_fills_the_grid_of_llama_4s_processor() -> None:
    for (width, height, tile, most, enlarged), (resized, grid) in TILES:
        fit = TilesForm(tile, most, enlarged).fit(width, height)
        assert (fit.resized, fit.box) == (resized, (0, 0, *grid)), (width, height)
        assert fit.below == (None if grid == (tile, tile) else (tile, tile)), (width, height)


@given(st.integers(1, 3000), st.integers(1, 3000), st.booleans())
def test_an_image_lies_within_a_grid_of_few_tiles(width: int, height: int, enlarged: bool) -> None:
    fit = TilesForm(28, 6, enlarged).fit(width, height)
    grid = fit.box[2] // 28, fit.box[3] // 28
    assert grid in grids(6)
    assert 1 <= fit.resized[0] <= fit.box[2]
    assert 1 <= fit.resized[1] <= fit.box[3]
    assert fit.size == (fit.box[2], fit.box[3] + (28 if grid != (1, 1) else 0))


def test_the_whole_image_lies_below_its_tiles() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 24, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    answer = prepared(file.getvalue(), TilesForm(16, 4))
    found = np.frombuffer(answer.pixels, np.uint8).reshape(answer.height, answer.width, 3)
    assert found.shape == (32, 32, 3)
    np.testing.assert_array_equal(found[:12, :24], pixels)
    assert not found[12:16].any()
    assert not found[:16, 24:].any()
    whole = Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(found[16:, :16], np.asarray(whole))
    assert not found[16:, 16:].any()


FORMS = [
    SquareForm(16, None, 3),
    MultiplesForm(28, 56, 100),
    LongestForm(28, 1540),
    CropsForm(448, 36),
    TilesForm(336, 16),
    PatchesForm(16, 256),
]


def test_a_form_comes_out_of_a_message_as_it_went_in() -> None:
    sent = msgspec.msgpack.encode(FORMS)
    any_form = SquareForm | MultiplesForm | LongestForm | CropsForm | TilesForm | PatchesForm
    assert msgspec.msgpack.decode(sent, type=list[any_form]) == FORMS


def test_an_image_fills_one_side_of_a_grid_of_crops_as_in_the_reference() -> None:
    """Sizes that transformers 5.24's Phi4MultimodalImageProcessor resizes to, by most crops."""
    wanted = {
        (36, 448, 448): (448, 448),
        (36, 100, 50): (448, 224),
        (36, 1000, 700): (1280, 896),
        (36, 449, 448): (449, 448),
        (36, 5000, 3000): (2240, 1344),
        (36, 1792, 3136): (1792, 3136),
        (36, 3000, 800): (3136, 836),
        (36, 450, 9000): (448, 8960),
        (36, 4480, 1793): (2238, 896),
        (6, 1000, 700): (1280, 896),
        (6, 5000, 3000): (1344, 806),
        (6, 1792, 3136): (448, 784),
        (6, 3000, 800): (1680, 448),
        (6, 450, 9000): (134, 2688),
        (6, 896, 900): (896, 900),
        (6, 4480, 1793): (896, 358),
    }
    found = {key: CropsForm(448, key[0]).fit(*key[1:]).size for key in wanted}
    assert found == wanted


def test_an_image_fills_squares_of_any_proportions_as_in_the_reference() -> None:
    """Sizes that transformers 5.24's Siglip2ImageProcessor resizes to, of at most 256 squares."""
    wanted = {
        (640, 480): (288, 224),
        (224, 224): (256, 256),
        (1, 1): (112, 112),
        (7, 5000): (16, 4096),
        (9000, 60): (2400, 16),
        (333, 777): (160, 384),
        (1920, 1080): (336, 192),
    }
    assert {size: PatchesForm(16, 256).fit(*size).size for size in wanted} == wanted
