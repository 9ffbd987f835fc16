"""Detokenizer for one sequence: tokens in, text chunks of whole characters out.

An answer continues the text of its prompt, except in a chat, where it is a text of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from model_server.engine.types import RowResult
from model_server.text.stop_sequence import StopSequence
from model_server.text.stop_text import StopText
from model_server.text.tokenizer import Tokenizer
from sax.types import SamplingParams, TokenChunk, TokenLogprob


class Detokenizer:
    """Turns the tokens of one sequence into chunks and ends it at a stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampling: SamplingParams,
        *,
        own_text: bool = False,
    ) -> None:
        """own_text: the answer's text starts with its first token, not with the prompt."""
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decoder(() if own_text else prompt)
        self._stop_text = StopText(sampling.stop)
        self._stop_sequence: StopSequence | None = None
        if sampling.stop_sequence:
            self._stop_sequence = StopSequence(sampling.stop_sequence)
            self._stop_sequence.follow(prompt)
        self._min_tokens = sampling.min_tokens  # no stop text or sequence ends the answer before
        self._prompt_tokens = len(prompt)
        self._logprobs = sampling.logprobs
        self._characters = 0  # so far, if there are logprobs
        self.tokens = 0
        self.score = 0.0

    def push(self, result: RowResult, finish: str | None) -> TokenChunk:
        """Return the chunk for one more token; `finish` is the engine's finish reason, if any.

        If the chunk has a finish reason although `finish` is None, a stop string was completed and
        the caller must cancel the sequence.
        """
        if result.token is None:
            return self._chunk(self._text("", finish), (), (), finish)
        self.tokens += 1
        self.score += result.logprob
        is_text = finish != "stop"  # a stop token is none
        if finish == "complete":
            finish = "stop"
        piece = self._decoder.push(result.token) if is_text else ""
        logprobs = () if self._logprobs is None else self._token_logprobs(result, piece)
        may_end = self.tokens > self._min_tokens
        if self._stop_sequence is not None and self._stop_sequence.push(result.token) and may_end:
            finish = "stop"
        text = self._text(piece, finish)
        if self._stop_text.matched:
            finish = "stop"
        return self._chunk(text, (result.token,), logprobs, finish)

    def _text(self, piece: str, finish: str | None) -> str:
        """Return the text that can be sent once `piece` was decoded."""
        if self.tokens <= self._min_tokens and finish != "stop":
            return piece + self._decoder.flush() if finish else piece
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

    def _token_logprobs(self, result: RowResult, piece: str) -> tuple[TokenLogprob, ...]:
        assert result.token is not None
        rivals = tuple(self._named(token, logprob) for token, logprob in result.top)
        chosen = self._named(
            result.token, result.logprob, rivals[: self._logprobs], self._characters
        )
        self._characters += len(piece)
        return (chosen,)

    def _named(
        self,
        token: int,
        logprob: float,
        rivals: tuple[TokenLogprob, ...] = (),
        text_offset: int = 0,
    ) -> TokenLogprob:
        return TokenLogprob(
            token_id=token,
            token=self._tokenizer.token_text(token),
            token_bytes=self._tokenizer.token_bytes(token),
            logprob=logprob,
            top=rivals,
            text_offset=text_offset,
        )
