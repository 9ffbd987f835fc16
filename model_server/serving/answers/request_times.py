"""RequestTimes: when one request arrived, took a slot and had its tokens. Pure: times are
arguments, in seconds of `time.monotonic`.
"""

from __future__ import annotations

from model_server.engine.engine import SequenceUpdate
from model_server.serving.metrics.request_tally import RequestTally


class RequestTimes:
    """Times of one request, which it tells its model's tally."""

    __slots__ = ("_interval", "_tally", "began_s", "first_s", "last_s", "started_s", "tokens")

    def __init__(self, tally: RequestTally, began_s: float) -> None:
        self._tally = tally
        self._interval = tally.interval
        self.began_s = began_s
        self.started_s = 0.0  # when it first took a slot here; 0: not yet
        self.first_s = 0.0  # when its first token was read; 0: not yet
        self.last_s = 0.0  # when its last one was, so far
        self.tokens = 0  # that were computed here

    @property
    def queue_s(self) -> float:
        """From its arrival to its first slot; 0.0 until it has one."""
        return max(self.started_s - self.began_s, 0.0) if self.started_s else 0.0

    def start(self, update: SequenceUpdate) -> None:
        """Note from the first update with a result when the request took a slot."""
        if not self.started_s and update.started_s:
            self.started_s = update.started_s
            self._tally.queue.observe(self.queue_s)

    def token(self, update: SequenceUpdate, now_s: float) -> None:
        """Note a token. Tokens of one step come at the same time, so no time is between them."""
        self.tokens += 1
        at_s = update.read_s or now_s
        if self.last_s:
            self._interval.observe(at_s - self.last_s)
        else:
            self._begin(update, at_s, now_s)
        self.last_s = at_s

    def _begin(self, update: SequenceUpdate, at_s: float, now_s: float) -> None:
        self.first_s = at_s
        self.start(update)
        self._tally.first_token.observe(now_s - self.began_s)
        if self.started_s:
            self._tally.prefill.observe(at_s - self.started_s)

    def succeed(self, now_s: float, prompt_tokens: int, answer_tokens: int, reason: str) -> None:
        """Note that the request has its whole answer."""
        tally = self._tally
        tally.ended[reason] += 1
        tally.whole.observe(now_s - self.began_s)
        if prompt_tokens:  # a score tells of none
            tally.prompt_tokens.observe(prompt_tokens)
            tally.answer_tokens.observe(answer_tokens)
        if not self.first_s:
            return
        tally.decode.observe(self.last_s - self.first_s)
        if self.started_s:
            tally.computing.observe(self.last_s - self.started_s)
        if self.tokens > 1:
            tally.per_token.observe((self.last_s - self.first_s) / (self.tokens - 1))

    def end(self, reason: str) -> None:
        """Note that the request ended without its whole answer: cancelled, error or refused."""
        self._tally.ended[reason] += 1
