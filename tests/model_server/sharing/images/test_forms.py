"""Sizes to which images are brought, and forms told by messages."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.sharing.images.forms import ImageForm, MultiplesForm, SquareForm

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


@pytest.mark.parametrize(("given_", "size"), SMART)
def test_sides_are_rounded_to_multiples_as_qwens_processor_does(
    given_: tuple[int, int, int, int, int], size: tuple[int, int]
) -> None:
    width, height, factor, least, most = given_
    fit = MultiplesForm(factor, least, most).fit(width, height)
    assert (fit.size, fit.resized) == (size, size)


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_sides_are_multiples_and_pixels_within_bounds(width: int, height: int) -> None:
    if max(width, height) > 100 * min(width, height):
        return
    form = MultiplesForm(28, 56 * 56, 1280 * 28 * 28)
    wide, high = form.fit(width, height).size
    assert (wide % 28, high % 28) == (0, 0)
    assert form.least <= wide * high <= form.most


def test_a_square_is_cut_from_the_middle_or_squeezed() -> None:
    assert SquareForm(16, 20, 3).fit(40, 80) == ((20, 40), (2, 12, 18, 28))
    assert SquareForm(16, None, 3).fit(40, 80) == ((16, 16), (0, 0, 16, 16))


@pytest.mark.parametrize("form", [SquareForm(16, None, 3), MultiplesForm(28, 56, 100)])
def test_a_form_comes_out_of_a_message_as_it_went_in(form: ImageForm) -> None:
    sent = msgspec.msgpack.encode(form)
    assert msgspec.msgpack.decode(sent, type=SquareForm | MultiplesForm) == form
