"""Numbers that stand for the tokens of images."""

import pytest
from msgspec.structs import replace

from model_server.engine.media import check_spans, numbers_of, with_numbers
from sax.errors import InvalidRequest
from tests.model_server.engine.media.fake_images import MEDIA, image


def test_the_tokens_of_an_image_are_numbers_below_zero_of_its_own():
    one, other = image([1, 2, 3], (0, 3)), image([1, 2, 4], (0, 3))
    numbers = [*numbers_of(one), *numbers_of(other)]
    assert len(set(numbers)) == 6
    assert all(-(2**63) <= number < 0 for number in numbers)


def test_equal_images_have_equal_numbers_wherever_they_stand():
    assert numbers_of(image([1, 2], (0, 2))) == numbers_of(image([1, 2], (3, 4), (5, 6)))


def test_the_runs_of_an_image_take_its_numbers_in_order():
    span = image([1, 2, 3], (1, 2), (3, 5))
    first, second, third = numbers_of(span)
    assert with_numbers((7, 9, 8, 9, 9, 6), (span,)) == [7, first, 8, second, third, 6]


def test_a_model_without_an_encoder_refuses_images():
    with pytest.raises(InvalidRequest, match="takes text alone"):
        check_spans((image([1], (0, 1)),), 1, None)


def test_an_image_larger_than_the_encoder_takes_is_refused():
    span = image(range(9), (0, 9))
    with pytest.raises(InvalidRequest, match="9 pieces and 9 tokens is larger"):
        check_spans((span,), 9, MEDIA)


def test_runs_must_lie_in_the_prompt_one_behind_the_other():
    span = replace(image([1, 2], (0, 2)), runs=((1, 2), (0, 1)))
    with pytest.raises(AssertionError):
        check_spans((span, span), 2, MEDIA)


def test_runs_of_one_medium_may_lie_between_those_of_another():
    between = image([1, 2, 3], (0, 1), (3, 5)), image([4, 5], (1, 3))
    check_spans(between, 5, MEDIA)
    with pytest.raises(AssertionError):
        check_spans(between[::-1], 5, MEDIA)
