"""The text of a reply: its prompt's part, the names of its tokens, and where it stops.

Pure. Text arrives in pieces of any size; where they are cut does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Protocol

from model_server.text.tokenizer import Tokenizer
from sax.types import ReplyOptions, TokenLogprob

ANY = 0  # in a sequence: any token, as in Saxml, which pads sequences with it


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


class StopText:
    """Passes text on up to the first stop string, holding back text that may be part of one.

    The first stop string to be completed ends the text; if several are completed by the same
    character, the longest one does.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """include: the text ends with the stop string, not before it."""
        self._include = include
        self._matchers = [_Matcher(stop) for stop in stops]
        self._firsts = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.found: str | None = None  # the stop string that ended the text

    @property
    def matched(self) -> bool:
        return self.found is not None

    def push(self, piece: str) -> str:
        """Return the text that is safe to send now; "" after a match."""
        if not self._matchers:
            return piece
        if self.found is not None:
            return ""
        if not self._held and self._firsts.isdisjoint(piece):
            return piece
        text = self._held + piece
        for end, character in enumerate(piece, start=len(self._held) + 1):
            if found := self._longest_match(character):
                self.found, self._held = found, ""
                return text[: end if self._include else end - len(found)]
        safe = len(text) - max(matcher.length for matcher in self._matchers)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """Return the text held back, once nothing more follows."""
        held, self._held = self._held, ""
        return held

    def _longest_match(self, character: str) -> str:
        return max(
            [matcher.stop for matcher in self._matchers if matcher.push(character)],
            key=len,
            default="",
        )


class _Matcher:
    """Tracks how much of a stop string the text ends with (Knuth, Morris and Pratt).

    Amortised constant work per character of the text for any stop string, and none before: a stop
    string is read only as far as the text has matched it.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        # Of each beginning that was met: the longest proper prefix that is also a suffix.
        self._border = [0]

    def push(self, character: str) -> bool:
        """True once the stop string is complete."""
        self.length = self._extend(self.length, character)
        if self.length > len(self._border):
            self._border.append(self._extend(self._border[-1], self.stop[self.length - 1]))
        return self.length == len(self.stop)

    def _extend(self, length: int, character: str) -> int:
        while length and self.stop[length] != character:
            length = self._border[length - 1]
        return length + (self.stop[length] == character)


# Stop sequence: ends an answer at a sequence of tokens, by id.
#
# Pure. Constant work per token: bit n of the state says that the last n + 1 tokens are the first n
# + 1 of the sequence.


class StopSequence:
    def __init__(self, ids: Sequence[int]) -> None:
        """`ids` must not be empty."""
        self._length = len(ids)
        self._whole = 1 << (len(ids) - 1)
        self._any = sum(1 << place for place, token in enumerate(ids) if token == ANY)
        self._places = dict.fromkeys(ids, self._any)
        for place, token in enumerate(ids):
            self._places[token] |= 1 << place
        self._state = 0

    def follow(self, prompt: Sequence[int]) -> None:
        """Continue the prompt: a sequence may begin there."""
        for token in prompt[max(0, len(prompt) - self._length + 1) :]:
            self.push(token)

    def push(self, token: int) -> bool:
        """True if the tokens so far end with the sequence."""
        self._state = (self._state << 1 | 1) & self._places.get(token, self._any)
        return bool(self._state & self._whole)
