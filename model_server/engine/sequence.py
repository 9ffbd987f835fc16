"""One request inside the engine: its input, its progress and its results."""

from __future__ import annotations

from typing import Literal

import msgspec

from model_server.engine.slot_write import check_biases
from model_server.engine.types import EngineLimits, Grammar, RowResult, Sampling
from sax.errors import InvalidRequest, PromptTooLong, SaxError

# complete: the guide allows nothing more; unlike a stop token, the last token is the answer's.
Finish = Literal["stop", "complete", "length", "score", "cancelled"]


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An engine request: generate an answer, or score the prompt's own tokens."""

    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int  # the context may end the answer earlier
    stop_ids: frozenset[int]
    grammar: Grammar | None = None  # what the answer must keep to; `sampling` is guided then
    score_from: int | None = None  # score prompt[score_from:] and generate nothing
    account: str = ""  # who asks: slots are shared among accounts
    member: str = ""  # a user of that account, by its own word: divides what the account gets
    priority: int = 0  # among the requests of one member; the lowest comes first
    adapter: int = 0  # place of its adapter, from 1 on; 0: none
    # Of an answer begun elsewhere:
    answer: tuple[int, ...] = ()  # its tokens; they do not finish it (see `finish_of`)
    computed: bool = False  # the runner has keys and values for all tokens but the last


class SequenceUpdate(msgspec.Struct, frozen=True):
    """Result of one step for one sequence. The last one has a `finish` or an `error`."""

    sequence: int
    result: RowResult
    finish: Finish | None = None
    error: SaxError | None = None


class Sequence:
    """The scheduler's state of one request. Raises InvalidRequest if it can never be served.

    Positions count tokens of prompt and answer together. The device computes position p from token
    p; the last computed position of a row yields token p + 1. So an answer's last token is never
    computed, and neither is the last token of a scored prompt.
    """

    __slots__ = (
        "account",
        "adapter",
        "computed",
        "end",
        "finish_at",
        "goal",
        "guide",
        "id",
        "in_flight",
        "launched",
        "long",
        "lost",
        "member",
        "pages",
        "priority",
        "prompt",
        "recompute_at",
        "sampling",
        "score_from",
        "scores",
        "scores_launched",
        "since",
        "slot",
        "stop_ids",
        "tokens",
    )

    def __init__(self, id: int, engine_request: EngineRequest, limits: EngineLimits) -> None:
        context = min(limits.max_context, limits.pages * limits.page_size)
        _check(engine_request, context)
        prompt = len(engine_request.prompt)
        self.id = id
        self.prompt = prompt  # tokens of it
        self.account = engine_request.account
        self.member = engine_request.member
        self.priority = engine_request.priority
        self.adapter = engine_request.adapter
        self.tokens = [*engine_request.prompt, *engine_request.answer]  # known and committed
        self.computed = engine_request.computed  # False once it has a slot
        self.sampling = engine_request.sampling
        self.stop_ids = engine_request.stop_ids
        self.guide = None
        if (grammar := engine_request.grammar) is not None:
            self.guide = grammar.begin(engine_request.answer, engine_request.sampling.allowed)
        self.score_from = engine_request.score_from
        self.finish_at = min(prompt + engine_request.max_tokens, context)  # tokens, at most
        if self.score_from is not None:
            self.finish_at = prompt
        self.end = self.finish_at - 1  # positions to compute in all
        self.since = 0  # the number of steps when it began to wait
        self.lost = 0  # positions computed when it was preempted, at most
        # Since the sequence last took a slot:
        self.slot = -1  # -1 while waiting
        self.pages: list[int] = []
        self.launched = 0  # positions computed or in flight
        self.goal = 0  # positions that are prefill; from there on it decodes
        self.long = False  # rotated by the factors of long sequences
        self.recompute_at = -1  # position from which on it must be, having begun as a short one
        # Kept across preemptions, because results in flight stay valid:
        self.in_flight = 0  # rows launched whose token is not committed
        self.scores_launched = 0  # scores requested from the device
        self.scores: list[float] = []  # scores committed

    def rotate(self, short_context: int | None, positions: int) -> None:
        """Choose the rotary factors for the positions at the start, as the reference does.

        Called at every start. The factors of a sequence that outgrows the short context change for
        all its positions, so that it starts again.
        """
        if short_context is not None:
            self.long = positions > short_context
            self.recompute_at = -1 if self.long else short_context

    @property
    def unscored(self) -> int:
        """First position whose logits give a score that was not requested yet."""
        if self.score_from is None:
            return self.finish_at
        return self.score_from - 1 + self.scores_launched

    def append(self, token: int) -> Finish | None:
        self.in_flight -= 1
        self.tokens.append(token)
        if token in self.stop_ids:
            return "stop"
        if self.guide is not None:
            self.guide.accept(token)
            if self.guide.finished:
                return "complete"
        return "length" if len(self.tokens) == self.finish_at else None


def finish_of(engine_request: EngineRequest, limits: EngineLimits) -> Finish | None:
    """Return the finish reason if the answer begun elsewhere is already complete."""
    if engine_request.answer and engine_request.answer[-1] in engine_request.stop_ids:
        return "stop"
    context = min(limits.max_context, limits.pages * limits.page_size)
    most = min(engine_request.max_tokens, context - len(engine_request.prompt))
    return "length" if len(engine_request.answer) >= most else None


def _check(engine_request: EngineRequest, context: int) -> None:
    """Reject what could not be served even with the engine to itself."""
    length, first = len(engine_request.prompt), engine_request.score_from
    check_biases(engine_request.sampling)
    if not length:
        raise InvalidRequest("the prompt has no tokens; send at least one", param="prompt")
    if first is None and engine_request.max_tokens < 1:
        raise InvalidRequest(
            f"max_tokens is {engine_request.max_tokens}; ask for at least 1", param="max_tokens"
        )
    if first is not None and not 0 < first < length:
        raise InvalidRequest(
            f"cannot score from token {first} of {length}: a score needs at least one token "
            "before it and one to score",
            param="score_from",
        )
    if length + (first is None) > context:
        raise PromptTooLong(
            f"the prompt has {length} tokens and the context holds {context}"
            f"{', one of them for the answer' if first is None else ''}: shorten the prompt, or "
            "serve the model with a larger --max_context or --kv_cache_bytes",
            param="prompt",
        )
