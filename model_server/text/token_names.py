"""Names of tokens in a reply: text, bytes, log-probabilities and alternatives."""

from __future__ import annotations

from collections.abc import Iterable

from model_server.text.tokenizer import Tokenizer
from sax.types import TokenLogprob


class TokenNames:
    """Makes the TokenLogprobs of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def named(
        self,
        token: int,
        logprob: float,
        top: tuple[TokenLogprob, ...] = (),
        text_offset: int = 0,
        rank: int = 0,
    ) -> TokenLogprob:
        return TokenLogprob(
            token_id=token,
            token=self._tokenizer.token_text(token),
            token_bytes=self._tokenizer.token_bytes(token),
            logprob=logprob,
            top=top,
            text_offset=text_offset,
            rank=rank,
        )

    def top(self, best_first: Iterable[tuple[int, float]]) -> tuple[TokenLogprob, ...]:
        """Return the likeliest tokens of one place, given best first."""
        return tuple(
            self.named(token, logprob, rank=rank)
            for rank, (token, logprob) in enumerate(best_first, 1)
        )
