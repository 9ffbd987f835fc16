"""Values exchanged by scheduler, runner and engine. No jax: a Step is small and serialisable.

A step is one device call on one flat batch of tokens. Because the engine launches step n+1 before
it has read the tokens of step n, a Step holds only what the host knows: which prompt tokens to run,
where each row's keys and values go, and which rows yield a token. A decode row takes its input
token on the device from `last_tokens[slot]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from model_server.engine.media import RowMedia

# Bits of `Sampling.edits`.
COUNTS, BIASES, ALLOWED, BAD_WORDS, GUIDED = 1, 2, 4, 8, 16


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """Sampling settings of one slot, as the device needs them."""

    temperature: float  # 0: greedy
    top_k: int  # 0: off
    top_p: float  # 1: off
    seed: int  # u64
    logprobs: int = 0  # how many top tokens to return
    min_p: float = 0.0  # 0: off
    typical_p: float = 1.0  # 1: off
    presence_penalty: float = 0.0  # of tokens of the answer
    frequency_penalty: float = 0.0  # of tokens of the answer, once per occurrence
    repetition_penalty: float = 1.0  # of tokens of prompt and answer; 1: off
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] | None = None  # None: every token
    min_tokens: int = 0  # of the answer, before one of `ends` may be chosen
    ends: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()  # tokens that must not follow each other
    guided: bool = False  # a grammar says before each token which ones may be chosen

    @property
    def edits(self) -> int:
        """The parts of the slot's state that its rows apply, one bit each."""
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        biases = self.logit_bias or (self.min_tokens and self.ends)
        restricted = self.guided or self.allowed is not None
        return (
            COUNTS * bool(penalties)
            + BIASES * bool(biases)
            + ALLOWED * restricted
            + BAD_WORDS * bool(self.bad_words)
            + GUIDED * self.guided
        )


class BeamSettings(msgspec.Struct, frozen=True):
    """Settings of one request's beam search."""

    size: int  # hypotheses kept after each token, and answers kept
    length_penalty: float  # the alpha of `beams.search.length_norm`
    early_stopping: bool = False  # at the first token after which all hypotheses have ended
    min_tokens: int = 0  # of an answer before its end token
    tokens_per_beam: int = 0  # that each hypothesis offers; 0: as many as there are beams

    @property
    def offers(self) -> int:
        """Tokens that each hypothesis offers."""
        return self.tokens_per_beam or self.size


class Hypothesis(msgspec.Struct, frozen=True):
    """An answer that a beam search found."""

    tokens: tuple[int, ...]  # the end token included
    logprob: float  # of all its tokens
    score: float  # `logprob`, normalised by the length


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One sequence's part of a step: `len(tokens)` prompt tokens, or one decode.

    Computes positions `start .. start + count - 1` of the sequence in `slot` and writes their keys
    and values. A decode row has `tokens == ()`: its one token is `given`, or `last_tokens[slot]`.
    """

    sequence: int  # id, unique for the engine's life
    slot: int
    start: int  # first position
    tokens: tuple[int, ...]  # prefill chunk, -1 - m for row m of the media; () for a decode
    yields: bool  # the row's last position gives a token (kept as last_tokens[slot])
    # Score: log p(targets[i]) from the logits of the row's last len(targets) positions, or of those
    # before the last one if that one yields.
    targets: tuple[int, ...] = ()
    long: bool = False  # rotated by the factors of long sequences
    # Likeliest tokens to return with each target; None: logprobs only
    target_tops: int | None = None
    adapter: int = 0  # place of its adapter, from 1 on; 0: none
    given: int = -1  # a decode's token; -1: the slot's last one, which the host may not know yet
    media: RowMedia | None = None  # of a model with an encoder, where it tells anything
    state: int = 0  # page of the state behind a draft token; 0: the one in the slot's table
    routes: bool = False  # give the experts of its tokens, too

    @property
    def count(self) -> int:
        return len(self.tokens) or 1

    @property
    def is_decode(self) -> bool:
        return not self.tokens

    @property
    def logit_rows(self) -> int:
        return self.yields + len(self.targets)


class Columns(NamedTuple):
    """Columns that all rows of a sequence share from when it takes a slot."""

    long: bool = False
    adapter: int = 0
    media: RowMedia | None = None  # of its decodes


class PageGrant(msgspec.Struct, frozen=True, array_like=True):
    """From this step on, `slot`'s page table holds `pages` from index `first` on.

    Page 0 stands for one that lies before the window of every later query.
    """

    slot: int
    first: int
    pages: tuple[int, ...]  # 1 .. P; page 0 is never granted
    window_pages: tuple[
        int, ...
    ] = ()  # likewise, of the window layers' own pages, if they have any


class SlotSampling(msgspec.Struct, frozen=True, array_like=True):
    """From this step on, `slot` samples like this."""

    slot: int
    sampling: Sampling
    # For a sampling with edits: the sequence's tokens so far, -1 for those of media; the first
    # `prompt` are the prompt's.
    tokens: tuple[int, ...] = ()
    prompt: int = 0


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One device call: decodes first, then prefill chunks."""

    number: int
    rows: tuple[Row, ...]
    grants: tuple[PageGrant, ...] = ()
    samplings: tuple[SlotSampling, ...] = ()
    guided: bool = False  # tokens are chosen only when a `Choose` has brought the masks
    # Page to copy and page to overwrite, then the same two of the window layers; before all rows
    copies: tuple[tuple[int, ...], ...] = ()


class SlotMask(msgspec.Struct, frozen=True, array_like=True):
    """The tokens that may be chosen next in a slot, or behind the draft token of a row."""

    slot: int  # of row n of the step, if that tries a draft token: slots + 1 + n
    allowed: bytes  # u32[ceil(V / 32)], little-endian: bit t % 32 of word t // 32 for token t


Top = tuple[tuple[int, float], ...]  # the likeliest tokens and their log-probabilities, best first


class RowResult(msgspec.Struct, frozen=True):
    """Result of one yielding or scoring row."""

    token: int | None = None
    logprob: float = 0.0  # of `token`, under the unmodified logits
    top: Top = ()
    target_logprobs: tuple[float, ...] = ()  # Score
    # With `Row.target_tops`: of each target, its rank (1: the likeliest) and the likeliest tokens.
    target_ranks: tuple[int, ...] = ()
    target_tops: tuple[Top, ...] = ()
    # With `Row.routes`: u8 or u16[count, L, k], ids of the experts of each token by layer with any.
    routes: np.ndarray | None = None


class StepResult(msgspec.Struct, frozen=True):
    """One result per row of the step, in order."""

    number: int
    rows: tuple[RowResult, ...]


class GrammarState(Protocol):
    """Follows one answer and says which tokens may come next. Called by the engine's thread."""

    @property
    def finished(self) -> bool:
        """True if the answer is complete and nothing may follow."""
        ...

    def fits(self, token: int) -> bool:
        """Return False if the answer could not be completed within its length after this token.

        It is then chosen anew: the next mask allows only tokens after which it can be.
        """
        ...

    def accept(self, token: int) -> None:
        """Take in the answer's next token."""
        ...

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must come next, if they are known by the last `mask`.

        That mask allows only the first of them.
        """
        ...

    def coming(self) -> tuple[int, ...]:
        """Return the tokens that must come next, as far as they are known without waiting."""
        ...

    def draft(self, tokens: Sequence[int]) -> int:
        """Return how many of these may come next, one after another; their masks are begun."""
        ...

    def drafted(self, count: int) -> bytes | None:
        """Return the mask behind so many tokens of the last `draft`; None: it takes too long."""
        ...

    @property
    def late(self) -> bool:
        """True while the mask is still being made for which the last step did not wait."""
        ...

    def mask(self) -> bytes | None:
        """Return the tokens that may come next, as in `SlotMask`, or None if that takes too long.

        Raises SaxError if none may, or if it took too long altogether.
        """
        ...


class Grammar(Protocol):
    """A compiled constraint on answers; any number of sequences share it."""

    def begin(
        self, answer: Sequence[int], allowed: tuple[int, ...] | None, left: int | None
    ) -> GrammarState:
        """Return the state of an answer that begins with these tokens.

        allowed: the only tokens that any part of it may have; None: all. left: tokens that may
        follow, and within which it is completed if that can be; None: it may end anywhere.
        """
        ...
