"""Limits of an engine by part: what they are, their checks, and the lanes of a pipeline. Pure."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.media import MediaLimits


class CoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that every engine has; limits that the scheduler must not exceed."""

    slots: int  # B: rows of the decode batch
    pages: int  # P: pages in the pool, page 0 excluded (it is the runner's scratch page)
    page_size: int  # G: tokens per page
    max_context: int  # S: prompt plus answer of one sequence, at most
    token_budget: int  # T: new tokens of one step, decodes included
    max_logit_rows: int  # rows of one step that can yield a token or a score
    prefill_block: int = 1  # a prefill chunk takes up whole blocks of the budget
    max_prefill_blocks: int | None = None  # per step; None: as many as the budget holds
    max_mixed_blocks: int | None = None  # of a step that also decodes; None: see Pace
    queue: int = 256  # waiting sequences before QueueFull
    max_running_per_account: int | None = None  # None: as many as there are slots
    max_queued_per_account: int | None = None  # None: up to the queue, and see Engine
    prefix_cache: PrefixSharing = "off"  # among sequences with one salt, which serving makes
    max_decodes: int | None = None  # decode rows of a step, draft tokens included; None: slots
    steps_per_launch: int = 1  # decode steps that one launch computes where nobody waits

    @property
    def decodes(self) -> int:
        """Decode rows of a step, at most."""
        return self.max_decodes or self.slots

    @property
    def pages_per_sequence(self) -> int:
        return -(-self.max_context // self.page_size)


class WindowLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that layers see, where these are not all before a query. Stored by the old names."""

    every: int | None = msgspec.field(default=None, name="window")  # None: some layer sees all
    # Of layers with a window beside layers that see all: they have window pages. None: all layers
    # have pages in common.
    sliding: int | None = msgspec.field(default=None, name="near_window")
    # Some layers keep a state of all tokens so far: none of these can be computed once more, and
    # only full pages are shared.
    recurrent: bool = False


class EngineLimits(CoreLimits, frozen=True, kw_only=True):
    """Limits of one engine: the core's, and what each part adds under one name."""

    windows: WindowLimits = WindowLimits()
    media: MediaLimits | None = None  # of the encoders beside the model; None: text alone
    # Tokens of the longest prompt, where each also sees those after it: one chunk holds them all;
    # 0: each sees those before it alone
    bidirectional_prompt: int = 0
    # Tokens of one sequence that a step may try; 0: none. Stored by the old name.
    draft_tokens: int = msgspec.field(default=0, name="guesses")
    adapters: int = 0  # places for adapters
    routed_experts: bool = False  # steps also give the ids of each token's experts
    # Longest sequence that the model rotates by its short factors (see `long_positions`); None: the
    # model has only one list.
    short_context: int | None = None

    @property
    def looks_ahead(self) -> bool:
        """True if some tokens of prompts also see those after them."""
        media = self.media
        return self.bidirectional_prompt > 0 or (media is not None and media.bidirectional)

    @property
    def least_run(self) -> int:
        """Tokens, at least, of each run of tokens that see each other, as kernels count runs.

        A prompt is the only run of its sequence: no block has tokens of two.
        """
        if self.bidirectional_prompt:
            return self.prefill_block
        return 1 if self.media is None else self.media.least

    @property
    def draft_rows(self) -> int:
        """Rows of a step that may try draft tokens and need a mask each."""
        return self.decodes if self.draft_tokens else 0

    @property
    def draft_states(self) -> int:
        """States behind draft tokens that one step may leave; 0: no layer keeps any."""
        return self.draft_tokens if self.windows.recurrent else 0


def lane_limits(limits: EngineLimits, lanes: int) -> EngineLimits:
    """Return the limits of each lane, which together have these slots and pages or fewer."""
    slots = limits.slots // lanes
    decodes = max(slots, limits.decodes // lanes)
    # Memory is planned for the states behind so many draft tokens in all.
    drafts = limits.draft_tokens // lanes if limits.windows.recurrent else limits.draft_tokens
    return replace(
        limits,
        draft_tokens=drafts,
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
    partial = limits.page_size % limits.prefill_block
    if limits.windows.recurrent and partial:
        raise ValueError(
            f"layers with a state need whole prefill_blocks of {limits.prefill_block} tokens in a "
            f"page of {limits.page_size}"
        )
    if limits.draft_states and (limits.windows.sliding or 0) > 2:
        raise ValueError(
            "the page of a state is exchanged when a draft token was right: layers with a window "
            f"of {limits.windows.sliding} tokens must not have keys and values in it"
        )
    if limits.media is not None:
        _check_media(limits, limits.media)
    if _chunk(limits) < limits.bidirectional_prompt:
        raise ValueError(
            f"one chunk must hold a prompt of {limits.bidirectional_prompt} tokens; a step has "
            f"room for {_chunk(limits)}"
        )
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
    for each in media.encoders:
        whole = all(size % each.per_row == 0 for size in each.pieces)
        if not whole or list(each.pieces) != sorted(set(each.pieces)):
            raise ValueError(f"pieces must rise and make whole vectors of {each.per_row}: {each}")
    if media.rows < media.largest:
        raise ValueError(f"media have {media.rows} rows; the largest needs {media.largest}")
    if _chunk(limits) < media.joined:
        raise ValueError(
            f"one chunk must hold an image of {media.joined} tokens; a step has room for "
            f"{_chunk(limits)}"
        )


def _chunk(limits: EngineLimits) -> int:
    """Return the tokens of the longest chunk, in whole blocks, beside all decodes."""
    blocks = (limits.token_budget - limits.decodes) // limits.prefill_block
    return min(blocks, limits.max_prefill_blocks or blocks) * limits.prefill_block
