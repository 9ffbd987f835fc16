"""Detokenizer for one sequence: tokens in, text chunks of whole characters out.

An answer continues the text of its prompt, except in a chat, where it is a text of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from model_server.engine.parts.thinking import ReasoningTrack
from model_server.engine.types import Hypothesis, RowResult
from model_server.serving.chats.divided_answer import UNDIVIDED, AnswerDivision
from model_server.text.reply_text import PromptText, StopSequence, StopText, TokenNames
from model_server.text.tokenizer import Tokenizer
from sax.types import (
    AnswerSoFar,
    HypothesisText,
    ReplyOptions,
    SamplingParams,
    TokenChunk,
    TokenLogprob,
)

PLAIN = ReplyOptions()


class Detokenizer:
    """Turns the tokens of one sequence into chunks and ends it at a stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        sampling: SamplingParams,
        reply: ReplyOptions = PLAIN,
        *,
        own_text: bool = False,
        seed: int | None = None,
        version: str = "",
        division: AnswerDivision = UNDIVIDED,
    ) -> None:
        """own_text: the answer's text starts with its first token, not with the prompt.

        seed, version of the model, division: told in the first chunk.
        """
        self._names = TokenNames(tokenizer)
        control = not reply.skip_special_tokens
        before = () if own_text else prompt
        self._new_decoder = partial(
            tokenizer.decoder, before, control=control, marks=division.marks
        )
        self._decoder = self._new_decoder()
        self._include_stop = reply.include_stop_str_in_output
        self._stop_text = StopText(sampling.stop, include=self._include_stop)
        self._ends = frozenset() if sampling.ignore_eos else tokenizer.eos_ids
        self._stop_sequence: StopSequence | None = None
        if sampling.stop_sequence:
            self._stop_sequence = StopSequence(sampling.stop_sequence)
            self._stop_sequence.follow(prompt)
        self._min_tokens = sampling.min_tokens  # no stop text or sequence ends the answer before
        self._prompt_tokens = len(prompt)
        self.cached_tokens = 0  # of the prompt
        self._logprobs = sampling.logprobs
        self._characters = 0  # so far, if there are logprobs
        self._prompt_text: PromptText | None = None  # None: nothing of it is returned
        self._reasoning = division.reasoning and ReasoningTrack(division.reasoning.form)
        self.tokens = 0
        self.score = 0.0
        opening = self._opened(tokenizer, prompt, reply)
        self._opening: TokenChunk | None = replace(
            opening, seed=seed, version=version, answer_format=division.format
        )

    def push(self, result: RowResult, finish: str | None) -> TokenChunk:
        """Return the chunk for scores of the prompt, one more token, or both.

        `finish` is the engine's finish reason, if any. If the chunk has a finish reason although
        `finish` is None, a stop string was completed and the caller must cancel the sequence.
        """
        if result.token is None:
            finish = "length" if finish == "score" else finish
            chunk = self._chunk(self._text("", finish), (), (), finish)
        else:
            chunk = self._answered(result, result.token, finish)
        if self._prompt_text is not None and result.target_ranks:
            chunk = replace(chunk, prompt_logprobs=self._prompt_text.scored(result))
        if self._opening is not None:
            chunk, self._opening = self._opening.joined(chunk), None
        return chunk

    def follow(self, answer: AnswerSoFar) -> None:
        """Go on after a part of the answer that its client has, the opening of it included."""
        for token in answer.token_ids:
            self.tokens += 1
            piece = self._decoder.push(token)
            if self._logprobs is not None:
                self._characters += len(piece)
            if self._stop_sequence is not None:
                self._stop_sequence.push(token)
            if self._reasoning is not None:
                self._reasoning.take(token)
            self._text(piece, None)
        self.score = answer.score
        self._opening = None
        if self._prompt_text is not None:
            self._prompt_text.skip(answer.prompt_logprobs - 1)  # the opening had the first

    def found(self, hypotheses: Sequence[Hypothesis]) -> TokenChunk:
        """Return the only chunk of a beam search, whose text is that of the best hypothesis."""
        texts = tuple(map(self._hypothesis, hypotheses))
        best = texts[0]
        self.tokens, self.score = len(best.token_ids), best.score
        chunk = self._chunk(best.text, best.token_ids, (), "stop", best.stop_token_id)
        assert self._opening is not None
        return replace(self._opening.joined(chunk), hypotheses=texts)

    def _hypothesis(self, hypothesis: Hypothesis) -> HypothesisText:
        decoder, tokens = self._new_decoder(), hypothesis.tokens
        shown = tokens if self._include_stop else tokens[:-1]
        text = "".join(map(decoder.push, shown)) + decoder.flush()
        end = None if tokens[-1] in self._ends else tokens[-1]
        return HypothesisText(text, tokens, hypothesis.score, end)

    def _answered(self, result: RowResult, token: int, finish: str | None) -> TokenChunk:
        self.tokens += 1
        self.score += result.logprob
        if self._reasoning is not None:
            self._reasoning.take(token)
        silent = finish == "stop" and not self._include_stop  # a stop token's text
        reason: int | str | None = None
        if finish == "stop" and token not in self._ends:
            reason = token
        if finish == "complete":
            finish = "stop"
        piece = "" if silent else self._decoder.push(token)
        logprobs = () if self._logprobs is None else self._token_logprobs(result, token, piece)
        may_end = self.tokens > self._min_tokens
        if self._stop_sequence is not None and self._stop_sequence.push(token) and may_end:
            finish = "stop"
        text = self._text(piece, finish)
        if self._stop_text.found is not None:
            finish, reason = "stop", self._stop_text.found
        return self._chunk(text, (token,), logprobs, finish, reason)

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
        stop_reason: int | str | None = None,
    ) -> TokenChunk:
        return TokenChunk(
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=finish,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self.tokens,
            score=self.score,
            stop_reason=stop_reason,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=0 if self._reasoning is None else self._reasoning.tokens,
        )

    def _token_logprobs(
        self, result: RowResult, token: int, piece: str
    ) -> tuple[TokenLogprob, ...]:
        rivals = self._names.top(result.top[: self._logprobs])
        chosen = self._names.named(token, result.logprob, rivals, self._characters)
        self._characters += len(piece)
        return (chosen,)

    def _opened(
        self, tokenizer: Tokenizer, prompt: Sequence[int], reply: ReplyOptions
    ) -> TokenChunk:
        """Return what the first chunk holds of the prompt."""
        text, scores = "", ()
        if reply.echo or reply.prompt_logprobs is not None:
            shown = PromptText(tokenizer, prompt, reply)
            if reply.echo:
                text, self._characters = shown.text, len(shown.text)
            if reply.prompt_logprobs is not None:
                self._prompt_text, scores = shown, (shown.first(),)
        ids = tuple(prompt) if reply.return_token_ids else ()
        return TokenChunk(text, prompt_token_ids=ids, prompt_logprobs=scores)
