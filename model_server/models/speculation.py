"""Overrides of speculative decoding: SPECULATION, MAX_GUESSES, DRAFT_MODEL and DRAFT_QUANTIZE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sax.errors import InvalidRequest

USUAL_DRAFT_TOKENS = 8
SPECULATION_DEFAULTS: Mapping[str, Any] = {
    # Draft tokens: "off"; "ngram": from what followed the last ones before; "draft":
    # those, and those of DRAFT_MODEL; "mtp": those, and those of the checkpoint's own draft layers;
    # null: as "ngram", in rows of the decode batch that are not used.
    "SPECULATION": None,
    "MAX_GUESSES": USUAL_DRAFT_TOKENS,  # of one sequence in one step
    # A smaller model with the same vocabulary or an EAGLE-3 head of the model: a checkpoint, or a
    # model path that needs none
    "DRAFT_MODEL": None,
    "DRAFT_QUANTIZE": None,  # QUANTIZE of that model
}
_MODES = ("off", "ngram", "draft", "mtp", None)
_ASKED = ("ngram", "draft", "mtp")
_MOST = 32


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft tokens that were asked for, or that are tried where they cost nothing."""

    draft_tokens: int = USUAL_DRAFT_TOKENS  # of one sequence in one step, at most; 0: none
    asked: bool = False  # worth larger steps than the slots need
    draft: str | None = None  # checkpoint or model path of the draft model
    draft_quantize: str | None = None
    own: bool = False  # by the draft layers of the model's own checkpoint

    @property
    def drafter(self) -> str | None:
        """What drafts beside the text so far, for people; None: nothing does."""
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
    if mode == "off" and draft_tokens != USUAL_DRAFT_TOKENS:
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
