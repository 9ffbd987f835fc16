"""Beam search in vLLM's dialect: `use_beam_search`, with `n` or `best_of` as its width."""

from __future__ import annotations

from http_gateway.openai.reply_schema import ReplyFields
from sax.errors import InvalidRequest
from sax.fields.sampling import MOST_BEAMS

_ONLY = {"length_penalty": 1.0, "early_stopping": False}  # and what changes nothing


def check_beams(body: ReplyFields, width: int) -> None:
    """Raise InvalidRequest for fields that contradict a beam search, or need one.

    width: answers generated per prompt.
    """
    if not body.use_beam_search:
        for name, unchanged in _ONLY.items():
            if getattr(body, name) not in (None, unchanged):
                raise InvalidRequest(
                    f"{name} is {getattr(body, name)} and there is no beam search: leave it out, "
                    "or send use_beam_search: true",
                    param=name,
                )
        return
    if body.stream:
        raise InvalidRequest(
            "a beam search has whole answers, which cannot be streamed: leave out stream or "
            "use_beam_search",
            param="stream",
        )
    if width > MOST_BEAMS:
        raise InvalidRequest(
            f"best_of is {width}: a beam search has at most {MOST_BEAMS} beams", param="best_of"
        )
