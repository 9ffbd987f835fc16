"""Checks a publish's overrides of Saxml's language model classes, and says which have no effect.

From the spec alone, so that an admin server without any model server refuses what no load can
take, and every listing repeats the same warnings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sax.errors import InvalidRequest
from sax.format import quoted
from sax.overrides.saxml_parameters import SAXML_PARAMETERS
from sax.overrides.value_rule import as_list
from sax.types import SamplingParams
from sax.wire.extra_inputs import encode_extra_inputs, sampling_from_extra_inputs

_CLASS = re.compile(r"(saxml\.server\.)?pax\.lm\.params\.(lm_cloud|gemma|gptj|c4)\.(\w+)")
# Classes that batch continuously: NUM_CACHE_SLOTS is above 0.
SLOTTED = frozenset(
    {
        *("lm_cloud.LLaMA7BContinuousBatchingTPUv5e4", "lm_cloud.LLaMA7BContinuousBatchingTPUv5e8"),
        *("lm_cloud.LLaMA7BH100", "lm_cloud.LLaMA70BFP16H100x8", "lm_cloud.LLaMA70BInt8H100x8"),
        *("lm_cloud.LLaMA70BInt8H100x8Fake", "lm_cloud.LLaMA70BInt8TPUv5e8"),
        "lm_cloud.LLaMA70BInt8TokenizedInputTPUv5e8",
        "lm_cloud.LLaMA70BInt8TokenizedInputTPUv5e8Stream",
        *(
            f"gemma.Gemma{name}"
            for name in (
                *("2BFP16", "2BFP16Exp", "2BFP16With8Replicas", "2BFP16With4Replicas"),
                *("2BFP16Test", "2BInt8", "2BInt8With8Replicas", "2BInt8Test"),
                *("7BFP16", "7BFP16Exp", "7BFP16With2Replicas", "7BFP16Test"),
                *("7BInt8", "7BInt8With2Replicas", "7BInt8Test"),
            )
        ),
    }
)
# Classes that answer with a beam search.
SEARCHING = frozenset(
    {
        *("gptj.GPTJ", "gptj.GPTJ4BF16BS32", "gptj.GPTJ4TokenizedBF16BS32"),
        "c4.C4SpmdGpt3AdamOrgHP",
    }
)
OF_BEAMS = (
    *("BEAM_SIZE", "TOKENS_PER_BEAM", "LENGTH_NORM_ALPHA"),
    *("BEAM_SEARCH_EARLY_EXIT", "MIN_DECODE_STEPS"),
)
OF_SAMPLERS = ("NUM_SAMPLES", "TEMPERATURE", "TOP_K", "TOP_P")
EXTRA_INPUTS = "EXTRA_INPUTS"
OF_SAMPLES = ("temperature", "per_example_top_k", "per_example_top_p")  # no beam search has them
_SAXMLS = (*OF_SAMPLES, "per_example_max_decode_steps", "eos_id")  # null in some of its classes


def read_saxml_overrides(path: str, overrides: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of Saxml's own parameters; {} for a model path that is none of Saxml's.

    Raises InvalidRequest naming one that no load of the class can take.
    """
    name = saxml_class_of(path)
    if name is None:
        return {}
    known = SAXML_PARAMETERS.keys() & overrides.keys()
    values = {key: SAXML_PARAMETERS[key].read(overrides[key]) for key in sorted(known)}
    if searches(name, values):
        _check_steps(values)
    if values.get(EXTRA_INPUTS) is not None:
        with_declared(values[EXTRA_INPUTS], SamplingParams())
    return values


def override_warnings(path: str, overrides: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each override without effect here. Total: what was refused at its
    publish, or is of a model path of another kind, has none."""
    name = saxml_class_of(path)
    if name is None:
        return ()
    try:
        values = read_saxml_overrides(path, overrides)
    except InvalidRequest:
        return ()
    own = (SAXML_PARAMETERS[key].warning(value) for key, value in values.items())
    return tuple(sorted({*filter(None, own), *_beside_others(name, values)}))


def saxml_class_of(path: str) -> str | None:
    """Return module and class, as "lm_cloud.LLaMA7B"; None: it is none of Saxml's."""
    found = _CLASS.fullmatch(path)
    return f"{found[2]}.{found[3]}" if found else None


def searches(name: str, values: Mapping[str, Any]) -> bool:
    return values.get("USE_BEAM_SEARCH", name in SEARCHING)


def _beside_others(name: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Say what has no effect because of another override, or of the class."""
    slots = values.get("NUM_CACHE_SLOTS", name in SLOTTED)
    if slots and values.get("BATCH_SIZE") not in (None, 1, [1]):
        yield (
            "BATCH_SIZE has no effect here: beside NUM_CACHE_SLOTS it is how many prompts Saxml "
            "computes at once, and here prompts share the tokens of each step"
        )
    if searches(name, values):
        yield from _without(OF_SAMPLERS, values, "a beam search has no samples")
        declared: Mapping[str, Any] = values.get(EXTRA_INPUTS) or {}
        if idle := [key for key in OF_SAMPLES if declared.get(key) is not None]:
            yield (
                f"{', '.join(idle)} of EXTRA_INPUTS has no effect here: a beam search has no "
                "samples"
            )
    else:
        yield from _without(OF_BEAMS, values, "USE_BEAM_SEARCH is false")


def _without(keys: Iterable[str], values: Mapping[str, Any], why: str) -> Iterator[str]:
    for key in keys:
        if key in values:
            yield f"{key} has no effect here: {why}"


def _check_steps(values: Mapping[str, Any]) -> None:
    """Raise InvalidRequest if MIN_DECODE_STEPS leaves no step, both being overridden."""
    if "MAX_DECODE_STEPS" not in values:
        return
    least, most = values.get("MIN_DECODE_STEPS", 0), max(as_list(values["MAX_DECODE_STEPS"]))
    if least >= most:
        raise InvalidRequest(
            f"MIN_DECODE_STEPS is {least} and MAX_DECODE_STEPS {most}, the end token included: "
            "give a number from 0 on, and below that",
            param="overrides.MIN_DECODE_STEPS",
        )


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
    return InvalidRequest(f"override {EXTRA_INPUTS}: {text}", param=f"overrides.{EXTRA_INPUTS}")
