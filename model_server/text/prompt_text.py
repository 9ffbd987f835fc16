"""The prompt's part of a reply: its text, and the log-probabilities of its tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Protocol

from model_server.text.token_names import TokenNames
from model_server.text.tokenizer import Tokenizer
from sax.types import ReplyOptions, TokenLogprob


class PromptScores(Protocol):
    """Scores of successive tokens."""

    @property
    def target_logprobs(self) -> Sequence[float]: ...

    @property
    def target_ranks(self) -> Sequence[int]: ...

    @property
    def target_tops(self) -> Sequence[Sequence[tuple[int, float]]]: ...


class PromptText:
    """The tokens of one prompt as the model reads them, and the places of their text."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int], reply: ReplyOptions) -> None:
        decoder = tokenizer.decoder(control=not reply.skip_special_tokens)
        pieces = [decoder.push(token) for token in ids]
        self.text = "".join(pieces)  # without a character that is unfinished at the end
        self._names = TokenNames(tokenizer)
        self._next: Iterator[tuple[int, int]] = zip(
            ids, accumulate(map(len, pieces), initial=0), strict=False
        )

    def first(self) -> TokenLogprob:
        """Return the first token, which follows nothing. Call before `scored`."""
        token, offset = next(self._next)
        return self._names.named(token, math.nan, text_offset=offset)

    def skip(self, tokens: int) -> None:
        """Leave out the scores of so many tokens, which are known."""
        for _ in islice(self._next, max(0, tokens)):
            pass

    def scored(self, scores: PromptScores) -> tuple[TokenLogprob, ...]:
        """Return the next tokens with their log-probabilities."""
        columns = zip(scores.target_logprobs, scores.target_ranks, scores.target_tops, strict=True)
        return tuple(
            self._names.named(token, logprob, self._names.top(top), offset, rank)
            # The columns first: zip takes from each in turn, and they end first.
            for (logprob, rank, top), (token, offset) in zip(columns, self._next, strict=False)
        )
