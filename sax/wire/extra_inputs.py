"""Translates Saxml's extra_inputs to sampling parameters; unknown keys are refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import Kind, RequestRoute
from sax.fields.sampling import SAMPLING, UNCHANGED
from sax.fields.table import fields_of
from sax.format import listing, quoted, shortened
from sax.proto import common_pb2, custom_pb2, lm_pb2
from sax.types import SamplingParams

ExtraInputs = Mapping[str, float | Sequence[float] | str]


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
        changes[_NUMBERS[key]] = _number(_NUMBERS[key], key, value)
    for key in [key for key in extra.tensors if key in _TENSORS]:
        changes[_TENSORS[key]] = _token_ids(_TENSORS[key], key, extra.tensors[key].values)
    if _EOS_ID in extra.tensors:
        # One sequence of tokens, which replaces the model's end tokens, as in Saxml.
        ids = _token_ids("stop_sequence", _EOS_ID, extra.tensors[_EOS_ID].values)
        changes["stop_sequence"] = _unpadded(ids)
        changes.setdefault("stop_token_ids", ())
        changes["ignore_eos"] = True
    if defaults.beam_size and not changes.get("beam_size", 1):
        # Samples, although the model's default is a beam search.
        changes = {**_WITHOUT_BEAMS, **changes}
    return replace(defaults, **changes)


def sample_temperatures(extra: common_pb2.ExtraInputs, count: int) -> tuple[float, ...]:
    """Return the temperature of each of `count` samples; () if they have one in common.

    Raises InvalidRequest for a tensor of another length, or a number beside it.
    """
    if _TEMPERATURE not in extra.tensors:
        return ()
    values, param = extra.tensors[_TEMPERATURE].values, f"extra_inputs.{_TEMPERATURE}"
    if _TEMPERATURE in extra.items:
        raise InvalidRequest(
            f"extra input {_TEMPERATURE} is a number and a tensor: send one of the two", param=param
        )
    if len(values) not in (1, count):
        raise InvalidRequest(
            f"extra input {_TEMPERATURE} has {len(values)} numbers: send one, or one for each "
            f"sample of the model, {count} in all",
            param=param,
        )
    read = tuple(float(_number(_TEMPERATURE, _TEMPERATURE, value)) for value in values)
    return read * count if len(read) < count else read


def refuse_extra_inputs(extra: common_pb2.ExtraInputs, method: str) -> None:
    """Raise UnsupportedParameter if any extra input was sent to a method without them."""
    if names := [*extra.items, *extra.tensors, *extra.strings]:
        raise UnsupportedParameter(
            f"{method} takes no extra inputs; leave out {_named(names)}",
            param=f"extra_inputs.{names[0]}",
        )


def _refuse_unknown(extra: common_pb2.ExtraInputs) -> None:
    tensors = {*_TENSORS, _EOS_ID, _TEMPERATURE}
    unknown = sorted({*extra.items} - {*_NUMBERS} | {*extra.tensors} - tensors | {*extra.strings})
    if unknown:
        allowed = ", ".join([*_NUMBERS, *(f"{key} (tensor)" for key in sorted(tensors))])
        raise UnsupportedParameter(
            f"extra input {_named(unknown)} is not supported; supported: {allowed}",
            param=f"extra_inputs.{unknown[0]}",
        )


def _named(names: Sequence[str]) -> str:
    return listing([shortened(name) for name in names])


def _number(name: str, key: str, value: float) -> float | bool:
    """Return a number of extra_inputs as a field's own kind, checked."""
    row, param = _FIELDS[name], f"extra_inputs.{key}"
    given: float | bool = value
    if row.kind is Kind.FLAG and value in (0, 1):
        given = bool(value)
    elif row.kind in (Kind.INTEGER, Kind.IDS) and math.isfinite(value) and value == int(value):
        given = int(value)
    row.read((given,) if row.kind is Kind.IDS else given, param)
    return given


def _token_ids(name: str, key: str, values: Sequence[float]) -> tuple[int, ...]:
    return tuple(int(_number(name, key, value)) for value in values)


def _unpadded(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids of a fixed-length tensor, padded on the left with zeros."""
    first = next((index for index, value in enumerate(ids) if value), None)
    if first is None:
        raise InvalidRequest(
            f"extra input {_EOS_ID} holds no token: give the tokens that end an answer together, "
            "padded on the left with zeros",
            param=f"extra_inputs.{_EOS_ID}",
        )
    return ids[first:]


def _keys(*kinds: Kind) -> dict[str, str]:
    """Map the extra inputs of these kinds to their fields; Saxml's own come first."""
    own = {row.saxml or name: name for name, row in SAMPLING.items() if row.saxml}
    ours = {name: name for name, row in SAMPLING.items() if row.saxml == ""}
    return {key: name for key, name in {**own, **ours}.items() if SAMPLING[name].kind in kinds}


_EOS_ID, _TEMPERATURE = "eos_id", "temperature"
_OF_BEAMS = ("length_penalty", "early_stopping", "tokens_per_beam")
_WITHOUT_BEAMS = {name: getattr(UNCHANGED, name) for name in _OF_BEAMS}
_FIELDS = dict(fields_of(RequestRoute.STREAM))
# 0 asks for the scores of a prompt, which no Saxml reply has.
_FIELDS["max_tokens"] = replace(_FIELDS["max_tokens"], least=1)
_NUMBERS = _keys(Kind.NUMBER, Kind.INTEGER, Kind.FLAG)
_TENSORS = _keys(Kind.IDS)


def encode_custom(
    model_id: str, request: bytes, method: str, extra: ExtraInputs | None = None
) -> custom_pb2.CustomRequest:
    """Encode a custom request. Raises InvalidRequest for what a message cannot hold."""
    inputs = encode_extra_inputs(extra or {})
    try:
        return custom_pb2.CustomRequest(
            model_key=model_id, request=request, method_name=method, extra_inputs=inputs
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(
            f"a custom request needs bytes and a method name: {exc}", param="request"
        ) from exc


def encode_score(
    model_id: str, prefix: str, suffixes: Sequence[str], extra: ExtraInputs | None = None
) -> lm_pb2.ScoreRequest:
    """Encode a request to score suffixes after a prefix. Raises InvalidRequest."""
    inputs = encode_extra_inputs(extra or {})
    try:
        return lm_pb2.ScoreRequest(
            model_key=model_id, prefix=prefix, suffix=suffixes, extra_inputs=inputs
        )
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"prefix or suffixes cannot be sent: {exc}") from exc


def encode_question(
    model_id: str, text: str, extra: ExtraInputs | None = None
) -> lm_pb2.GenerateRequest:
    """Encode a text to continue. Raises InvalidRequest."""
    inputs = encode_extra_inputs(extra or {})
    try:
        return lm_pb2.GenerateRequest(model_key=model_id, text=text, extra_inputs=inputs)
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"the text cannot be sent: {exc}", param="text") from exc
