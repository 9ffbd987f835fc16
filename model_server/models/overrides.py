"""Checks a publish's overrides, and reads those of chats and of speculative decoding.

As in Saxml, each key must exist on the class and each value is JSON of the same type as the value
it replaces, unless one of the two is null. Unlike Saxml, errors are never ignored. Saxml's own
classes take all that Saxml's do, as `sax.overrides` declares it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sax.chat import ReasoningParser, ToolParser
from sax.errors import InvalidRequest
from sax.format import shortened
from sax.overrides.known_paths import unknown_override
from sax.overrides.saxml_overrides import read_saxml_overrides
from sax.overrides.saxml_parameter import Verdict
from sax.overrides.saxml_parameters import SAXML_PARAMETERS
from sax.overrides.value_rule import read_json

_USUAL_DRAFT_TOKENS = 8
SPECULATION_DEFAULTS: Mapping[str, Any] = {
    # Draft tokens: "off"; "ngram": from what followed the last ones before; "draft":
    # those, and those of DRAFT_MODEL; "mtp": those, and those of the checkpoint's own draft layers;
    # null: as "ngram", in rows of the decode batch that are not used.
    "SPECULATION": None,
    "MAX_GUESSES": _USUAL_DRAFT_TOKENS,  # of one sequence in one step
    # A smaller model with the same vocabulary or an EAGLE-3 head of the model: a checkpoint, or a
    # model path that needs none
    "DRAFT_MODEL": None,
    "DRAFT_QUANTIZE": None,  # QUANTIZE of that model
}
_MODES = ("off", "ngram", "draft", "mtp", None)
_ASKED = ("ngram", "draft", "mtp")
_MOST = 32
CHAT_DEFAULTS: Mapping[str, Any] = {
    "CHAT_TEMPLATE": None,  # in Jinja; null: the checkpoint's
    "TOOL_PARSER": None,  # null: as the template tells
    "REASONING_PARSER": None,
}


def apply_overrides(
    defaults: Mapping[str, Any], overrides: Mapping[str, str], path: str = ""
) -> dict[str, Any]:
    """Return the class's values with overrides applied; path: of one of Saxml's classes.

    Raises InvalidRequest naming the key.
    """
    values, declared = dict(defaults), read_saxml_overrides(path, overrides)
    for key, text in overrides.items():
        if key in defaults:
            default = defaults[key]
            values[key] = (
                _in_kind(declared[key], default)
                if key in declared
                else _checked(key, text, default)
            )
        elif key not in declared or SAXML_PARAMETERS[key].verdict is Verdict.HONOURED:
            raise unknown_override(key, defaults)
    return values


def _checked(key: str, text: str, default: Any) -> Any:
    value = _in_kind(read_json(key, text), default)
    if value is not None and default is not None and type(value) is not type(default):
        raise InvalidRequest(
            f"override {key}={shortened(text)} is a {type(value).__name__}, expected "
            f"{type(default).__name__} like the default {json.dumps(default)}",
            param=f"overrides.{key}",
        )
    return value


def _in_kind(value: Any, default: Any) -> Any:
    """Return a whole number as a float where the default is one."""
    return float(value) if isinstance(default, float) and type(value) is int else value


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft tokens that were asked for, or that are tried where they cost nothing."""

    draft_tokens: int = _USUAL_DRAFT_TOKENS  # of one sequence in one step, at most; 0: none
    asked: bool = False  # worth larger steps than the slots need
    draft: str | None = None  # checkpoint or model path of the draft model
    draft_quantize: str | None = None
    own: bool = False  # by the draft layers of the model's own checkpoint

    @property
    def drafter(self) -> str | None:
        """The name of what drafts besides the text so far, for logs; None: nothing does."""
        return "its own draft layers" if self.own else self.draft


def parse_speculation(values: Mapping[str, Any]) -> Speculation:
    """Return what the overrides ask for. Raises InvalidRequest."""
    mode, draft_tokens = values["SPECULATION"], values["MAX_GUESSES"]
    if mode not in _MODES:
        raise InvalidRequest(
            f'SPECULATION must be "off", "ngram", "draft", "mtp" or null, not {mode!r}',
            param="overrides.SPECULATION",
        )
    if type(draft_tokens) is not int or not 1 <= draft_tokens <= _MOST:
        raise InvalidRequest(
            f"MAX_GUESSES is {draft_tokens!r}; it must be from 1 to {_MOST}",
            param="overrides.MAX_GUESSES",
        )
    if mode == "off" and draft_tokens != _USUAL_DRAFT_TOKENS:
        raise InvalidRequest(
            f'MAX_GUESSES is {draft_tokens}, and SPECULATION "off" makes no draft tokens: '
            "leave one out",
            param="overrides.MAX_GUESSES",
        )
    _check_draft(values)
    return Speculation(
        0 if mode == "off" else draft_tokens,
        asked=mode in _ASKED,
        own=mode == "mtp",
        draft=values.get("DRAFT_MODEL"),
        draft_quantize=values.get("DRAFT_QUANTIZE"),
    )


def _check_draft(values: Mapping[str, Any]) -> None:
    mode, draft = values["SPECULATION"], values.get("DRAFT_MODEL")
    if draft is not None and (not isinstance(draft, str) or not draft):
        raise _wrong("DRAFT_MODEL", f"DRAFT_MODEL is {draft!r}; give a checkpoint or a model path")
    if mode == "draft" and draft is None:
        raise _wrong(
            "DRAFT_MODEL",
            'SPECULATION is "draft", and DRAFT_MODEL is missing: name the checkpoint of a smaller '
            "model with the same vocabulary",
        )
    for key in ("DRAFT_MODEL", "DRAFT_QUANTIZE"):
        if mode != "draft" and values.get(key) is not None:
            raise _wrong(
                key, f'{key} is {values[key]!r}, which needs SPECULATION "draft": set both or none'
            )


def _wrong(key: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, param=f"overrides.{key}")


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """None: as the checkpoint says."""

    template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    usual: str | None = None  # template of a checkpoint that has none; None: it takes no chats


def parse_chat(values: Mapping[str, Any]) -> ChatSettings:
    """Check the overrides of `CHAT_DEFAULTS`. Raises InvalidRequest."""
    template = values.get("CHAT_TEMPLATE")
    if template is not None and not (isinstance(template, str) and template):
        raise InvalidRequest(
            "CHAT_TEMPLATE must be a text that is not empty, or null",
            param="overrides.CHAT_TEMPLATE",
        )
    return ChatSettings(
        template,
        _one_of("TOOL_PARSER", values, ToolParser),
        _one_of("REASONING_PARSER", values, ReasoningParser),
    )


def _one_of(key: str, values: Mapping[str, Any], known: type[StrEnum]) -> str | None:
    value = values.get(key)
    if value is None or value in [*known]:
        return value
    raise InvalidRequest(
        f"{key} is {value!r}: give one of {', '.join(known)}, or null", param=f"overrides.{key}"
    )


_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "DTYPE": ("bfloat16", "float32"),
    "QUERY_FORMAT": ("chat", "raw", None),
    "KV_CACHE_DTYPE": ("float32", "bfloat16", "int8", "float8_e4m3fn", None),
    "ACTIVATIONS": ("int8", None),
}


def check_choices(values: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for a value that is none of an override's few."""
    for key, allowed in _CHOICES.items():
        if values[key] not in allowed:
            *others, last = map(json.dumps, allowed)
            raise InvalidRequest(
                f"{key} must be {', '.join(others)} or {last}, not {values[key]!r}",
                param=f"overrides.{key}",
            )


# Null stands for the model's own, or the server's flag.
_POSITIVE_OR_NULL = ("MAX_CONTEXT", "KV_CACHE_BYTES", "NUM_CACHE_SLOTS", "MAX_DECODE_STEPS")
_POSITIVE = ("NUM_SAMPLES", "NUM_STAGES")


def check_positive(values: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for a number of something that is none."""
    for key in (*_POSITIVE_OR_NULL, *_POSITIVE):
        value = values.get(key)
        if value is None and key in _POSITIVE_OR_NULL:
            continue
        if type(value) is not int or value < 1:
            raise InvalidRequest(
                f"{key} is {value!r}; it must be at least 1", param=f"overrides.{key}"
            )


def check_sampling(values: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for defaults of sampling that no request could have."""
    allowed = {
        "TEMPERATURE": (lambda value: 0 <= value < math.inf, "0 (greedy) or more"),
        "TOP_K": (lambda value: value >= 0, "0 (off) or more"),
        "TOP_P": (lambda value: 0 < value <= 1, "above 0 and at most 1 (off)"),
    }
    for key, (fits, wanted) in allowed.items():
        value = values[key]
        if value is None or not fits(value):
            raise InvalidRequest(
                f"{key} is {value!r}; it must be {wanted}", param=f"overrides.{key}"
            )
