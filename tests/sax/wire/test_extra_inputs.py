"""Saxml's extra_inputs: each key honoured, anything else refused by name."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sax.errors import InvalidRequest, UnsupportedParameter
from sax.types import SamplingParams
from sax.wire.extra_inputs import (
    encode_extra_inputs,
    sample_temperatures,
    sampling_from_extra_inputs,
)
from tests.each_case import each_case

DEFAULTS = SamplingParams(temperature=0.5, top_k=40, max_tokens=32, stop_token_ids=(1,))


def sampling(extra: Mapping[str, float | list[float] | str]) -> SamplingParams:
    return sampling_from_extra_inputs(encode_extra_inputs(extra), DEFAULTS)


def test_nothing_given_leaves_the_defaults() -> None:
    assert sampling({}) == DEFAULTS


def test_every_key_sets_its_field() -> None:
    assert sampling(
        {
            "temperature": 0.25,
            "per_example_top_k": 200.0,
            "per_example_top_p": 0.75,
            "per_example_max_decode_steps": 128,
            "seed": 7.0,
        }
    ) == SamplingParams(
        temperature=0.25, top_k=200, top_p=0.75, max_tokens=128, seed=7, stop_token_ids=(1,)
    )


def test_eos_id_is_one_sequence_without_its_padding_and_replaces_the_models_end_tokens() -> None:
    changed = sampling({"eos_id": [0.0, 0.0, 13.0, 0.0, 2.0]})
    assert changed.stop_sequence == (13, 0, 2)
    assert changed.stop_token_ids == ()
    assert changed.ignore_eos


@each_case(
    "extra, named",
    [
        ({"temprature": 1.0}, "temprature"),
        ({"style": "formal"}, "style"),
        ({"per_example_top_k": [1.0]}, "per_example_top_k"),
        ({"eos_id": 2.0}, "eos_id"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
def test_an_unknown_key_is_refused_with_the_allowed_ones(
    extra: Mapping[str, float | list[float] | str], named: str
) -> None:
    with pytest.raises(UnsupportedParameter, match=named) as caught:
        sampling(extra)
    assert "per_example_top_k" in caught.value.text
    assert caught.value.param == f"extra_inputs.{named}"


@each_case(
    "key, value",
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("per_example_top_k", 1.5),
        ("per_example_top_k", -1.0),
        ("per_example_top_p", -0.5),
        ("per_example_top_p", 1.5),
        ("per_example_max_decode_steps", 0.0),
        ("seed", float("inf")),
        ("eos_id", [1.5]),
        ("eos_id", [0.0, 0.0]),
        ("eos_id", []),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(key: str, value: float | list[float]) -> None:
    with pytest.raises(InvalidRequest, match=key):
        sampling({key: value})


def test_a_top_p_of_0_keeps_the_likeliest_token() -> None:
    assert sampling({"per_example_top_p": 0}).top_p == 0


@each_case(
    "extra, told",
    [
        ({}, ()),
        ({"temperature": 0.5}, ()),
        ({"temperature": [0.5, 0.25, 0.0]}, (0.5, 0.25, 0.0)),
        ({"temperature": [0.5]}, (0.5, 0.5, 0.5)),
    ],
)
def test_each_sample_may_have_a_temperature(
    extra: Mapping[str, float | list[float]], told: tuple[float, ...]
) -> None:
    assert sample_temperatures(encode_extra_inputs(extra), 3) == pytest.approx(told)
    if isinstance(extra.get("temperature"), list):
        assert sampling(extra) == DEFAULTS


@each_case("values", [[], [0.5, 0.5], [0.5, -1.0, 0.5], [float("nan")]])
def test_temperatures_that_no_sample_can_have_are_refused(values: list[float]) -> None:
    encoded = encode_extra_inputs({"temperature": values})
    with pytest.raises(InvalidRequest, match="temperature"):
        sample_temperatures(encoded, 3)


def test_one_temperature_is_not_said_twice() -> None:
    encoded = encode_extra_inputs({"temperature": [0.5]})
    encoded.items["temperature"] = 0.5
    with pytest.raises(InvalidRequest, match="one of the two"):
        sample_temperatures(encoded, 1)


@pytest.mark.parametrize("value", [None, ["a"], object()])
def test_a_value_of_no_kind_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        encode_extra_inputs({"temperature": value})  # type: ignore[dict-item]
