"""Translates Saxml's extra_inputs to sampling parameters; unknown keys are refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sax.errors import InvalidRequest, UnsupportedParameter
from sax.format import listing, quoted, shortened
from sax.proto import common_pb2
from sax.types import SamplingParams

ExtraInputs = Mapping[str, float | Sequence[float] | str]

_MAX_I32 = 2**31 - 1
_MAX_U64 = 2**64 - 1


def encode_extra_inputs(extra: ExtraInputs) -> common_pb2.ExtraInputs:
    """Encode numbers, tensors and strings. Raises InvalidRequest naming the key."""
    msg = common_pb2.ExtraInputs()
    for key, value in extra.items():
        try:
            if isinstance(value, str):
                msg.strings[key] = value
            elif isinstance(value, Sequence):
                msg.tensors[key].values.extend(value)
            else:
                msg.items[key] = value
        except (TypeError, ValueError) as exc:
            raise InvalidRequest(
                f"extra input {quoted(key)} must be a number, a list of numbers or a text: {exc}",
                param=f"extra_inputs.{key}",
            ) from exc
    return msg


def sampling_from_extra_inputs(
    extra: common_pb2.ExtraInputs, defaults: SamplingParams
) -> SamplingParams:
    """Apply the request's extra inputs to the defaults. Raises InvalidRequest or a subclass."""
    _refuse_unknown(extra)
    changes: dict[str, Any] = {}
    for key, value in extra.items.items():
        field, convert = _NUMBERS[key]
        changes[field] = convert(key, value)
    if _EOS_ID in extra.tensors:
        # One sequence of tokens, which replaces the model's end tokens, as in Saxml.
        changes["stop_sequence"] = _token_ids(_EOS_ID, extra.tensors[_EOS_ID].values)
        changes["stop_token_ids"] = ()
        changes["ignore_eos"] = True
    return replace(defaults, **changes)


def refuse_extra_inputs(extra: common_pb2.ExtraInputs, method: str) -> None:
    """Raise UnsupportedParameter if any extra input was sent to a method without them."""
    if names := [*extra.items, *extra.tensors, *extra.strings]:
        raise UnsupportedParameter(
            f"{method} takes no extra inputs; leave out {_named(names)}",
            param=f"extra_inputs.{names[0]}",
        )


def _refuse_unknown(extra: common_pb2.ExtraInputs) -> None:
    unknown = sorted({*extra.items} - {*_NUMBERS} | {*extra.tensors} - {_EOS_ID} | {*extra.strings})
    if unknown:
        allowed = ", ".join([*_NUMBERS, f"{_EOS_ID} (tensor)"])
        raise UnsupportedParameter(
            f"extra input {_named(unknown)} is not supported; supported: {allowed}",
            param=f"extra_inputs.{unknown[0]}",
        )


def _named(names: Sequence[str]) -> str:
    return listing([shortened(name) for name in names])


def _temperature(key: str, value: float) -> float:
    return _check(key, value, math.isfinite(value) and value >= 0, "a number, 0 or more")


def _fraction(key: str, value: float) -> float:
    return _check(key, value, 0 < value <= 1, "a number above 0 and up to 1")


def _integer(low: int, high: int) -> Callable[[str, float], int]:
    def convert(key: str, value: float) -> int:
        whole = math.isfinite(value) and value == int(value) and low <= value <= high
        return int(_check(key, value, whole, f"a whole number, {low} or more"))

    return convert


def _token_ids(key: str, values: Sequence[float]) -> tuple[int, ...]:
    """Return the ids of a fixed-length tensor, padded on the left with zeros."""
    ids = [_integer(0, _MAX_I32)(key, value) for value in values]
    first = next((index for index, value in enumerate(ids) if value), None)
    if first is None:
        raise InvalidRequest(
            f"extra input {key} holds no token: give the tokens that end an answer together, "
            "padded on the left with zeros",
            param=f"extra_inputs.{key}",
        )
    return tuple(ids[first:])


def _check(key: str, value: float, good: bool, wanted: str) -> float:
    if not good:
        raise InvalidRequest(
            f"extra input {key} is {value:g}; it must be {wanted}",
            param=f"extra_inputs.{key}",
        )
    return value


_EOS_ID = "eos_id"
_NUMBERS: dict[str, tuple[str, Callable[[str, float], float]]] = {
    "temperature": ("temperature", _temperature),
    "per_example_top_k": ("top_k", _integer(0, _MAX_I32)),
    "per_example_top_p": ("top_p", _fraction),
    "per_example_max_decode_steps": ("max_tokens", _integer(1, _MAX_I32)),
    "seed": ("seed", _integer(0, _MAX_U64)),
}
