"""Detokenizer for one sequence: tokens in, text chunks of whole characters out."""

from __future__ import annotations

from collections.abc import Sequence

from model_server.engine.types import RowResult
from model_server.text.stop_text import StopText
from model_server.text.tokenizer import Tokenizer
from sax.types import TokenChunk, TokenLogprob


class Detokenizer:
    """Turns the tokens of one sequence into chunks and ends it at a stop string."""

    def __init__(
        self, tokenizer: Tokenizer, *, stop: Sequence[str], prompt_tokens: int, logprobs: int | None
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decoder()
        self._stop_text = StopText(stop)
        self._prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self.tokens = 0
        self.score = 0.0

    def push(self, result: RowResult, finish: str | None) -> TokenChunk:
        """Return the chunk for one more token; `finish` is the engine's finish reason, if any.

        If the chunk has a finish reason although `finish` is None, a stop string was completed and
        the caller must cancel the sequence.
        """
        if result.token is None:
            return self._chunk(self._text(None, finish), (), (), finish)
        self.tokens += 1
        self.score += result.logprob
        text = self._text(result.token, finish)
        if self._stop_text.matched:
            finish = "stop"
        return self._chunk(text, (result.token,), self._token_logprobs(result), finish)

    def _text(self, token: int | None, finish: str | None) -> str:
        """Return the text that can be sent with this token; a stop token has none."""
        piece = "" if token is None or finish == "stop" else self._decoder.push(token)
        if not finish:
            return self._stop_text.push(piece)
        text = self._stop_text.push(piece + self._decoder.flush())
        return text if self._stop_text.matched else text + self._stop_text.flush()

    def _chunk(
        self,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...],
        finish: str | None,
    ) -> TokenChunk:
        return TokenChunk(
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=finish,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self.tokens,
            score=self.score,
        )

    def _token_logprobs(self, result: RowResult) -> tuple[TokenLogprob, ...]:
        if self._logprobs is None or result.token is None:
            return ()
        rivals = tuple(self._named(token, logprob) for token, logprob in result.top)
        return (self._named(result.token, result.logprob, rivals[: self._logprobs]),)

    def _named(
        self, token: int, logprob: float, rivals: tuple[TokenLogprob, ...] = ()
    ) -> TokenLogprob:
        return TokenLogprob(
            token_id=token,
            token=self._tokenizer.token_text(token),
            token_bytes=self._tokenizer.token_bytes(token),
            logprob=logprob,
            top=rivals,
        )
