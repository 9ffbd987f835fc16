"""EXTRA_INPUTS: the extra inputs that a Saxml class declares are the defaults of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sax.errors import InvalidRequest
from sax.format import quoted
from sax.overrides.value_rule import as_list
from sax.types import SamplingParams
from sax.wire.extra_inputs import encode_extra_inputs, sampling_from_extra_inputs

KEY = "EXTRA_INPUTS"
OF_SAMPLES = ("temperature", "per_example_top_k", "per_example_top_p")  # no beam search has them
_SAXMLS = (*OF_SAMPLES, "per_example_max_decode_steps", "eos_id")  # null in some of its classes


def with_declared(
    declared: Mapping[str, Any], defaults: SamplingParams, *, searches: bool = False
) -> SamplingParams:
    """Apply declared extra inputs to a class's defaults.

    searches: the class answers with a beam search. Raises InvalidRequest naming the extra input.
    """
    given = {k: v for k, v in declared.items() if v is not None or k not in _SAXMLS}
    for key, value in given.items():
        _check_value(key, value)
    heeded: dict[str, Any] = {
        key: value for key, value in given.items() if not (searches and key in OF_SAMPLES)
    }
    try:
        return sampling_from_extra_inputs(encode_extra_inputs(heeded), defaults)
    except InvalidRequest as error:
        raise _refused(error.text) from error


def _check_value(key: str, value: Any) -> None:
    if key == "temperature" and isinstance(value, list):
        raise _refused(
            "temperature is a list: declare one number, and send one for each sample with a request"
        )
    numbers = as_list(value)
    if not numbers or not all(type(each) in (int, float) for each in numbers):
        raise _refused(f"{quoted(key)} is {quoted(value)}: give a number, or a list of numbers")


def _refused(text: str) -> InvalidRequest:
    return InvalidRequest(f"override {KEY}: {text}", param=f"overrides.{KEY}")
