"""Checks the limits of an engine, and divides them among the lanes of a pipeline."""

from __future__ import annotations

from msgspec.structs import replace

from model_server.engine.media.media_limits import MediaLimits
from model_server.engine.types import EngineLimits


def lane_limits(limits: EngineLimits, lanes: int) -> EngineLimits:
    """Return the limits of each lane, which together have these slots and pages or fewer."""
    slots = limits.slots // lanes
    decodes = max(slots, limits.decodes // lanes)
    return replace(
        limits,
        slots=slots,
        pages=(limits.pages + 1) // lanes - 1,  # each has a scratch page of its own
        token_budget=limits.token_budget - limits.decodes + decodes,
        max_logit_rows=max(decodes, 2),
        queue=-(-limits.queue // lanes),
        max_decodes=None if decodes == slots else decodes,
        steps_per_launch=1,
    )


def check_limits(limits: EngineLimits) -> None:
    """Raise ValueError for limits under which some sequence could wait forever."""
    if min(limits.slots, limits.pages, limits.page_size, limits.prefill_block) < 1:
        raise ValueError(f"slots, pages, page_size and prefill_block must be positive: {limits}")
    if limits.steps_per_launch < 1:
        raise ValueError(f"steps_per_launch must be positive: {limits.steps_per_launch}")
    if limits.max_context < 2:
        raise ValueError(f"max_context must hold a prompt and an answer: {limits.max_context}")
    if limits.max_prefill_blocks is not None and limits.max_prefill_blocks < 1:
        raise ValueError(f"max_prefill_blocks must be positive: {limits.max_prefill_blocks}")
    if limits.max_mixed_blocks is not None and limits.max_mixed_blocks < 1:
        raise ValueError(f"max_mixed_blocks must be positive: {limits.max_mixed_blocks}")
    if limits.decodes < limits.slots:
        raise ValueError(
            f"max_decodes is {limits.max_decodes}; it must be at least slots: {limits.slots}"
        )
    if limits.recurrent and (limits.page_size % limits.prefill_block or limits.draft_tokens):
        raise ValueError(
            f"layers with a state need whole prefill_blocks of {limits.prefill_block} tokens in a "
            f"page of {limits.page_size}, and no draft tokens: {limits.draft_tokens}"
        )
    if limits.media is not None:
        _check_media(limits, limits.media)
    least = limits.decodes - 1 + limits.prefill_block
    if limits.token_budget < least:
        raise ValueError(
            f"token_budget is {limits.token_budget}; with {limits.decodes} decodes and a "
            f"prefill_block of {limits.prefill_block} it must be at least {least}"
        )
    if limits.max_logit_rows < limits.decodes:
        raise ValueError(
            f"max_logit_rows is {limits.max_logit_rows}; it must be at least decodes: "
            f"{limits.decodes}"
        )


def _check_media(limits: EngineLimits, media: MediaLimits) -> None:
    """Raise ValueError if some image could wait forever for rows, or for a chunk to hold it."""
    if any(each % media.per_row for each in media.pieces) or list(media.pieces) != sorted(
        set(media.pieces)
    ):
        raise ValueError(f"pieces must rise and make whole vectors of {media.per_row}: {media}")
    if media.rows < media.largest:
        raise ValueError(f"media have {media.rows} rows; the largest needs {media.largest}")
    blocks = (limits.token_budget - limits.decodes) // limits.prefill_block
    blocks = min(blocks, limits.max_prefill_blocks or blocks)
    if media.bidirectional and blocks * limits.prefill_block < media.largest:
        raise ValueError(
            f"one chunk must hold an image of {media.largest} tokens; a step has room for "
            f"{blocks} blocks of {limits.prefill_block}"
        )
