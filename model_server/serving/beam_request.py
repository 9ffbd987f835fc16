"""Validates a request for a beam search and converts what is its own. Pure."""

from __future__ import annotations

from typing import Any

from model_server.engine.parts.beams import sampling_of
from model_server.engine.types import BeamSettings, Sampling
from sax.errors import InvalidRequest
from sax.fields.sampling import MOST_LOGPROBS, SAMPLING, UNCHANGED
from sax.types import GenerateRequest, SamplingParams

# Fields that a beam search has, too. Temperature 0 is what peers ask for, and changes nothing.
_ITS_OWN = frozenset({"beam_size", "length_penalty", "early_stopping", "tokens_per_beam"})
_SHARED = frozenset({"temperature", "seed", "max_tokens", "min_tokens", "stop_token_ids"})
_ENDS = frozenset({"ignore_eos"})
_REFUSED = [name for name in SAMPLING if name not in _ITS_OWN | _SHARED | _ENDS]
_NO_REPLY = ("echo", "prompt_logprobs")


def check_beams(request: GenerateRequest) -> None:
    """Raise InvalidRequest, naming the field, for what contradicts a beam search, or needs one."""
    sampling = request.sampling
    if not sampling.beam_size:
        for name in ("length_penalty", "early_stopping", "tokens_per_beam"):
            if getattr(sampling, name) != getattr(UNCHANGED, name):
                raise InvalidRequest(
                    f"{name} is {getattr(sampling, name)} and there is no beam search: leave it "
                    "out, or set beam_size",
                    param=name,
                )
        return
    if sampling.temperature not in (0.0, 1.0):
        raise _contradiction("temperature", sampling.temperature, "send 0 or 1")
    for name in _REFUSED:
        if (value := getattr(sampling, name)) != getattr(UNCHANGED, name):
            raise _contradiction(name, value)
    for name in _NO_REPLY:
        if (value := getattr(request.reply, name)) not in (None, False):
            raise _contradiction(name, value)
    if sampling.max_tokens == 0:
        raise _contradiction("max_tokens", 0, "send at least 1")


def beam_search(
    sampling: SamplingParams, ends: frozenset[int]
) -> tuple[BeamSettings | None, Sampling]:
    """Return the settings of a search that was checked, and its slots' sampling.

    Raises InvalidRequest if nothing can end an answer, or too many tokens.
    """
    if sampling.ignore_eos and not ends:
        raise _contradiction("ignore_eos", True, "only whole answers are found; set stop_token_ids")
    if not ends:
        raise InvalidRequest(
            "a beam search finds whole answers, and this model has no end token: set "
            "stop_token_ids, or leave out beam_size",
            param="stop_token_ids",
        )
    beams = BeamSettings(
        sampling.beam_size,
        sampling.length_penalty,
        sampling.early_stopping,
        sampling.min_tokens,
        sampling.tokens_per_beam,
    )
    _check_room(beams, ends)
    return beams, sampling_of(beams, ends)


def _check_room(beams: BeamSettings, ends: frozenset[int]) -> None:
    """Raise InvalidRequest if a step cannot report as many tokens as the search needs."""
    if not beams.min_tokens or beams.offers + len(ends) <= MOST_LOGPROBS:
        return
    name = "tokens_per_beam" if beams.tokens_per_beam else "beam_size"
    raise InvalidRequest(
        f"{name} is {beams.offers} and {len(ends)} tokens end an answer, before min_tokens none of "
        f"them: together at most {MOST_LOGPROBS} are allowed, so send fewer stop_token_ids, a "
        f"smaller {name}, or no min_tokens",
        param=name,
    )


def _contradiction(name: str, value: Any, remedy: str = "leave it out") -> InvalidRequest:
    return InvalidRequest(
        f"{name} is {value!r}, which contradicts a beam search (beam_size): {remedy}, or leave out "
        "beam_size",
        param=name,
    )
