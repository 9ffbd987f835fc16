"""Saxml's overrides of batches, sampling and beams, read into what a recipe says of calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sax.errors import InvalidRequest
from sax.fields.sampling import MOST_LOGPROBS, UNCHANGED
from sax.format import quoted
from sax.overrides.declared_inputs import KEY as EXTRA_INPUTS
from sax.overrides.declared_inputs import with_declared
from sax.overrides.value_rule import as_list
from sax.types import SamplingParams

Values = Mapping[str, Any]

_OF_SAMPLES = ("temperature", "top_k", "top_p")
_GREEDY = 0.0  # Saxml's temperature where no extra input is declared


def normal(given: Values) -> Values:
    """Return the values with one of the ways to write each: lists of lengths, zeros for none."""
    _check_alone("MAX_SEQ_LEN", "MAX_CONTEXT", given)
    _check_alone("QUANTIZE_KV", "KV_CACHE_DTYPE", given)
    return {
        **given,
        "MAX_DECODE_STEPS": max(as_list(given["MAX_DECODE_STEPS"])),
        "NUM_CACHE_SLOTS": given["NUM_CACHE_SLOTS"] or None,
        "MAX_CONTEXT": given["MAX_SEQ_LEN"] or given["MAX_CONTEXT"],
        "KV_CACHE_DTYPE": "int8" if given["QUANTIZE_KV"] else given["KV_CACHE_DTYPE"],
    }


def _check_alone(key: str, ours: str, given: Values) -> None:
    """Raise InvalidRequest if Saxml's name and ours for one thing are both set."""
    if given[key] and given[ours] is not None:
        raise InvalidRequest(
            f"{key} and {ours} set the same: leave one of the two out", param=f"overrides.{key}"
        )


def batches(given: Values) -> tuple[int, ...]:
    """Return the sequences of each batch size; () if slots are counted otherwise."""
    sizes = given["BATCH_SIZE"]
    if given["NUM_CACHE_SLOTS"] or sizes is None:
        return ()
    answers = given["BEAM_SIZE" if given["USE_BEAM_SEARCH"] else "NUM_SAMPLES"]
    return tuple(sorted({size * answers for size in as_list(sizes)}))


def call_defaults(given: Values, usual: Values, served: SamplingParams) -> SamplingParams:
    """Return what a call that says nothing gets.

    usual: the class's own values. served: the sampling of those that were given, with end tokens.
    Raises InvalidRequest naming an extra input.
    """
    found = replace(served, **_search(given))
    declared = given[EXTRA_INPUTS]
    if declared is None:
        return found
    if given["USE_BEAM_SEARCH"]:
        return _bounded(with_declared(declared, found, searches=True), given)
    return _bounded(with_declared(declared, _undeclared(given, usual, found)), given)


def _undeclared(given: Values, usual: Values, found: SamplingParams) -> SamplingParams:
    """Return what Saxml's calls get where a class declares no extra input.

    A class's own TEMPERATURE, TOP_P and PER_EXAMPLE_MAX_DECODE_STEPS stand for those it declares.
    """

    def told(key: str) -> bool:
        return given[key] != usual[key]

    return replace(
        found,
        temperature=found.temperature if told("TEMPERATURE") else _GREEDY,
        top_p=found.top_p if told("TOP_P") else UNCHANGED.top_p,
        max_tokens=found.max_tokens
        if told("PER_EXAMPLE_MAX_DECODE_STEPS")
        else given["MAX_DECODE_STEPS"],
    )


def _bounded(found: SamplingParams, given: Values) -> SamplingParams:
    """Return the defaults within the class's limits, as Saxml clips them."""
    most_k, most = given["TOP_K"], given["MAX_DECODE_STEPS"]
    if most_k and not given["USE_BEAM_SEARCH"]:
        found = replace(found, top_k=min(found.top_k or most_k, most_k))
    return replace(found, max_tokens=min(found.max_tokens or most, most))


def check_search(given: Values) -> None:
    """Raise InvalidRequest for a beam search that cannot be."""
    if not given["USE_BEAM_SEARCH"]:
        return
    steps, most = given["MIN_DECODE_STEPS"], given["MAX_DECODE_STEPS"]
    if not 0 <= steps < most:
        raise InvalidRequest(
            f"MIN_DECODE_STEPS is {quoted(steps)} and MAX_DECODE_STEPS {most}, the end token "
            "included: give a number from 0 on, and below that",
            param="overrides.MIN_DECODE_STEPS",
        )
    offers = given["TOKENS_PER_BEAM"]
    # What a step reports has room for the end tokens, too, which do not count at first.
    room = MOST_LOGPROBS - 1 if steps else MOST_LOGPROBS
    if offers is not None and offers > room:
        raise InvalidRequest(
            f"TOKENS_PER_BEAM is {offers}: with MIN_DECODE_STEPS {steps} give a number from 1 to "
            f"{room}, or null: as many as BEAM_SIZE",
            param="overrides.TOKENS_PER_BEAM",
        )


def _search(given: Values) -> Values:
    """Sampling defaults of a class that searches."""
    if not given["USE_BEAM_SEARCH"]:
        return {}
    return {
        "beam_size": given["BEAM_SIZE"],
        "tokens_per_beam": given["TOKENS_PER_BEAM"] or 0,
        "length_penalty": given["LENGTH_NORM_ALPHA"],
        "early_stopping": bool(given["BEAM_SEARCH_EARLY_EXIT"]),
        "min_tokens": given["MIN_DECODE_STEPS"],
        **{name: getattr(UNCHANGED, name) for name in _OF_SAMPLES},
    }
