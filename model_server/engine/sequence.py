"""One request inside the engine: its input, its progress and its results."""

from __future__ import annotations

import threading
from typing import Literal

import msgspec
from msgspec.structs import replace

from model_server.engine.media.media_span import MediaSpan, check_spans, with_numbers
from model_server.engine.slot_write import check_biases
from model_server.engine.types import (
    BeamSettings,
    EngineLimits,
    Grammar,
    Hypothesis,
    Row,
    RowResult,
    Sampling,
)
from sax.errors import InvalidRequest, PromptTooLong, SaxError

# complete: the guide allows nothing more; unlike a stop token, the last token is the answer's.
Finish = Literal["stop", "complete", "length", "score", "cancelled"]


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An engine request: generate an answer, score the prompt's own tokens, or both."""

    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int  # the context may end the answer earlier; 0: only score
    stop_ids: frozenset[int]
    grammar: Grammar | None = None  # what the answer must keep to; `sampling` is guided then
    score_from: int | None = None  # score prompt[score_from:]
    # Likeliest tokens to return with each score; None: numbers alone, and all of them at the end if
    # nothing is generated.
    score_tops: int | None = None
    account: str = ""  # who asks: slots are shared among accounts
    member: str = ""  # a user of that account, by its own word: divides what the account gets
    priority: int = 0  # among the requests of one member; the lowest comes first
    # Sequences share the keys and values of equal first tokens only if their salts are equal: it
    # holds all else that changes them (an adapter's weights), and what keeps callers apart.
    salt: str = ""
    adapter: int = 0  # place of its adapter, from 1 on; 0: none
    # Search for the likeliest answers instead of sampling one; `sampling` is `beams.sampling_of`.
    beams: BeamSettings | None = None
    # Images and sounds of the prompt, by their places in it; the tokens there count for nothing.
    media: tuple[MediaSpan, ...] = ()
    # i32[len(prompt), 3], of a model whose positions are triples; empty: all count tokens.
    positions: bytes = b""
    shift: int = 0  # added to the positions of tokens behind the prompt
    # Of an answer begun elsewhere:
    answer: tuple[int, ...] = ()  # its tokens; they do not finish it (see `finish_of`)
    computed: bool = False  # the runner has keys and values for all tokens but the last
    traced: bool = False  # its updates tell when each chunk of its prompt was computed


class Begun(msgspec.Struct, frozen=True):
    """Progress of a sequence, from which another engine can go on with it."""

    id: int
    answer: tuple[int, ...]  # tokens delivered
    scores: int  # of the prompt's tokens, committed

    def rest_of(self, engine_request: EngineRequest) -> EngineRequest:
        """Return the request for what is still to come of it."""
        first = engine_request.score_from
        told = engine_request.max_tokens > 0 or engine_request.score_tops is not None
        if first is not None and told:  # else its scores come all at the end
            first += self.scores
            first = None if first == len(engine_request.prompt) else first
        return replace(engine_request, answer=self.answer, computed=False, score_from=first)


class PromptChunk(msgspec.Struct, frozen=True):
    """A part of a prompt, and when a step computed it; times are of `time.monotonic`."""

    start: int  # first position
    tokens: int
    began_s: float
    ended_s: float


class SequenceUpdate(msgspec.Struct, frozen=True):
    """Result of one step for one sequence. The last one has a `finish` or an `error`."""

    sequence: int
    result: RowResult
    finish: Finish | None = None
    error: SaxError | None = None
    cached: int = 0  # tokens of the prompt that were not computed for this sequence
    hypotheses: tuple[Hypothesis, ...] = ()  # of a beam search, with its `finish`; best first
    read_s: float = 0.0  # when the step was read, by `time.monotonic`; 0: no step gave it
    started_s: float = 0.0  # when the sequence first took a slot; 0: it never did
    chunks: tuple[PromptChunk, ...] = ()  # of a traced sequence, since its last update


class Sequence:
    """The scheduler's state of one request. Raises InvalidRequest if it can never be served.

    Positions count tokens of prompt and answer together. The device computes position p from token
    p; the last computed position of a row yields token p + 1. So an answer's last token is never
    computed, and neither is the last token of a scored prompt.
    """

    __slots__ = (
        "account",
        "beams",
        "cached",
        "chain",
        "chunks",
        "adapter",
        "ahead",
        "computed",
        "deferred",
        "dropped",
        "end",
        "finish_at",
        "goal",
        "guessable",
        "guesses",
        "guide",
        "id",
        "in_flight",
        "kept",
        "launched",
        "long",
        "lost",
        "media",
        "member",
        "near",
        "near_known",
        "near_source",
        "near_unseen",
        "pages",
        "pinned",
        "positions",
        "priority",
        "prompt",
        "recompute_at",
        "restate",
        "reused",
        "salt",
        "sampling",
        "score_from",
        "score_tops",
        "scores",
        "scores_committed",
        "scores_launched",
        "seats",
        "shift",
        "since",
        "slot",
        "source",
        "started_s",
        "stepwise",
        "stop_ids",
        "tokens",
        "unseen",
        "written",
    )

    def __init__(self, id: int, engine_request: EngineRequest, limits: EngineLimits) -> None:
        context = context_of(engine_request, limits)
        _check(engine_request, context)
        _check_beams(engine_request, limits, context)
        _check_media(engine_request, limits)
        prompt = len(engine_request.prompt)
        self.id = id
        self.prompt = prompt  # tokens of it
        self.account = engine_request.account
        self.member = engine_request.member
        self.priority = engine_request.priority
        self.adapter = engine_request.adapter
        # Known and committed; those of media are numbers below 0.
        self.tokens = [
            *with_numbers(engine_request.prompt, engine_request.media),
            *engine_request.answer,
        ]
        self.media = engine_request.media
        self.positions = engine_request.positions
        self.shift = engine_request.shift
        self.computed = engine_request.computed  # False once it has a slot
        self.sampling = engine_request.sampling
        self.stop_ids = engine_request.stop_ids
        self.score_from = engine_request.score_from
        self.score_tops = engine_request.score_tops
        self.finish_at = min(prompt + engine_request.max_tokens, context)  # tokens, at most
        self.end = self.finish_at - 1  # positions to compute in all
        self.guide = None
        if (grammar := engine_request.grammar) is not None:
            # Words that may not follow each other can close every way to an end.
            left = None if self.sampling.bad_words else self.finish_at - len(self.tokens)
            self.guide = grammar.begin(engine_request.answer, self.sampling.allowed, left)
        # Its tokens depend on those before only through the model, so they can be guessed.
        self.guessable = self.guide is None and not self.sampling.edits
        # The host chooses its next input: no row is launched before the last one's token is known.
        self.stepwise = False
        self.beams = engine_request.beams
        # Sequences that run the hypotheses of one search and take slots together, the one that was
        # submitted first; None: it is alone.
        self.seats: list[Sequence] | None = None
        self.since = 0  # the number of steps when it began to wait
        self.started_s = 0.0  # when it first took a slot; 0: not yet
        self.chunks: list[PromptChunk] | None = [] if engine_request.traced else None
        self.lost = 0  # positions computed when it was preempted, at most
        # Of the prefix cache:
        self.salt = engine_request.salt
        self.chain: list[bytes] = []  # digests: of the salt, and of 1, 2, ... full pages
        self.cached = -1  # tokens of the prompt found at its first admission; -1: not admitted yet
        self.deferred = False  # it once waited for a step that writes tokens like its own
        # Since the sequence last took a slot:
        self.slot = -1  # -1 while waiting
        self.pages: list[int] = []
        # Of the layers with pages of their own, see `paging.near_pages`:
        self.near: list[int] = []  # as many as `pages`; [] if no layer has any
        self.near_known = 0  # tokens at the beginning that others had, too
        self.near_source = 0  # page to copy with `source`
        self.near_unseen = 0  # pages at the beginning that were freed
        self.launched = 0  # positions computed, in flight or found in the cache
        self.reused = 0  # positions found in the cache
        self.source = 0  # page to copy with its first chunk, held until then; 0: none
        self.written = 0  # positions in the launched steps whose tokens are known
        self.unseen = 0  # pages before the window of all later queries: 0 in `pages`
        self.kept = 0  # full pages that others can find, or that were found
        self.goal = 0  # positions that are prefill; from there on it decodes
        self.pinned: frozenset[bytes] = frozenset()  # digests of media whose rows it keeps
        self.long = False  # rotated by the factors of long sequences
        self.recompute_at = -1  # position from which on it must be, having begun as a short one
        # The slot's last token is another (a guess, or one that is chosen anew): the next row
        # carries its own.
        self.restate = False
        # Kept across preemptions, because results in flight stay valid:
        self.in_flight = 0  # rows launched whose token is not committed
        self.guesses = 0  # rows in flight behind those: each counts if its token comes true
        # Forced tokens of a row in flight, behind the one that the row before it chooses.
        self.ahead: tuple[int, ...] = ()
        self.dropped = 0  # rows launched before those whose token will not be taken
        self.scores_launched = 0  # scores requested from the device
        self.scores: list[float] = []  # those committed, if all come at the end
        self.scores_committed = 0

    def rotate(self, short_context: int | None, positions: int) -> None:
        """Choose the rotary factors for the positions at the start, as the reference does.

        Called at every start. The factors of a sequence that outgrows the short context change for
        all its positions, so that it starts again.
        """
        if short_context is not None:
            long = positions > short_context
            if long != self.long:
                self.chain.clear()
            self.long = long
            self.recompute_at = -1 if self.long else short_context

    @property
    def width(self) -> int:
        """Slots that it takes."""
        return 1 if self.seats is None else len(self.seats)

    @property
    def is_seat(self) -> bool:
        """True if it only runs hypotheses of another sequence's search."""
        return self.seats is not None and self.seats[0] is not self

    @property
    def begun(self) -> Begun:
        """Its progress; a beam search would begin again."""
        answer = () if self.seats is not None else tuple(self.tokens[self.prompt :])
        return Begun(self.id, answer, self.scores_committed)

    @property
    def settled(self) -> bool:
        """True if no token is on its way, nor one of a sequence that takes slots with it."""
        return not (self.in_flight if self.seats is None else any(s.in_flight for s in self.seats))

    @property
    def generates(self) -> bool:
        return self.finish_at > self.prompt

    @property
    def reusable(self) -> int:
        """First positions that it need not compute at its next start: its last one yields a token.

        Neither may those be skipped whose logits give a score.
        """
        goal = len(self.tokens) if self.generates else self.end
        return min(goal - 1, self.unscored)

    @property
    def unscored(self) -> int:
        """First position whose logits give a score that was not requested yet; else the end."""
        if self.score_from is None or self.score_from + self.scores_launched == self.prompt:
            return self.finish_at
        return self.score_from - 1 + self.scores_launched

    def settle(self, row: Row) -> bool:
        """Take a guess's row out of flight; return True if it computed the sequence's own token.

        It then counts as if it had been launched once that token was known.
        """
        self.guesses -= 1
        last = len(self.tokens) - 1
        if row.start != last or row.given != self.tokens[last]:
            return False
        self.in_flight += 1
        if self.slot >= 0:
            self.launched += 1
        return True

    def takes(self, token: int) -> bool:
        """Return False for a token of a row in flight that cannot be the answer's next."""
        return self.guide is None or token in self.stop_ids or self.guide.fits(token)

    def append(self, token: int) -> Finish | None:
        self.in_flight -= 1
        self.tokens.append(token)
        if token in self.stop_ids:
            return "stop"
        if self.guide is not None:
            self.guide.accept(token)
            if self.guide.finished:
                return "complete"
        if self.ahead:
            self._append_ahead()
        return "length" if len(self.tokens) == self.finish_at else None

    def _append_ahead(self) -> None:
        assert self.guide is not None, "only guides force tokens"
        for token in self.ahead:
            self.tokens.append(token)
            self.guide.accept(token)
        self.ahead = ()


class Ids:
    """Ids of sequences, higher and higher, for all engines that share them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1

    def take(self, count: int = 1) -> int:
        """Return the first of `count` ids that follow each other."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return first


def context_of(engine_request: EngineRequest, limits: EngineLimits) -> int:
    """Return the tokens of prompt and answer that can be held at most.

    Hypotheses share the full pages of their prompt, and may have no other in common.
    """
    context = min(limits.max_context, limits.pages * limits.page_size)
    if engine_request.beams is None:
        return context
    shared = len(engine_request.prompt) // limits.page_size
    own = (limits.pages - shared) // engine_request.beams.size
    return min(context, (shared + own) * limits.page_size)


def finish_of(engine_request: EngineRequest, limits: EngineLimits) -> Finish | None:
    """Return the finish reason if the answer begun elsewhere is already complete."""
    if engine_request.answer and engine_request.answer[-1] in engine_request.stop_ids:
        return "stop"
    context = context_of(engine_request, limits)
    most = min(engine_request.max_tokens, context - len(engine_request.prompt))
    return "length" if len(engine_request.answer) >= most else None


def _check(engine_request: EngineRequest, context: int) -> None:
    """Reject what could not be served even with the engine to itself."""
    length, first = len(engine_request.prompt), engine_request.score_from
    check_biases(engine_request.sampling)
    if not length:
        raise InvalidRequest("the prompt has no tokens; send at least one", param="prompt")
    generates = engine_request.max_tokens > 0
    if first is None and not generates:
        raise InvalidRequest(
            f"max_tokens is {engine_request.max_tokens}; ask for at least 1", param="max_tokens"
        )
    if first is not None and not 0 < first < length:
        raise InvalidRequest(
            f"cannot score from token {first} of {length}: a score needs at least one token "
            "before it and one to score",
            param="score_from",
        )
    if length + generates > context:
        raise PromptTooLong(
            f"the prompt has {length} tokens and the context holds {context}"
            f"{', one of them for the answer' if generates else ''}: shorten the prompt, or "
            "serve the model with a larger --max_context or --kv_cache_bytes",
            param="prompt",
        )


def _check_media(engine_request: EngineRequest, limits: EngineLimits) -> None:
    """Reject media that the model cannot take, and scores of their tokens, which mean nothing."""
    prompt, media = len(engine_request.prompt), engine_request.media
    check_spans(media, prompt, limits.media)
    if media and limits.media is not None and limits.media.triples:
        assert engine_request.positions, "the places of its images come with the request"
    if engine_request.positions:
        assert limits.media is not None, "its positions are not triples"
        assert limits.media.triples, "its positions are not triples"
        assert len(engine_request.positions) == 12 * prompt, "positions are i32[T, 3]"
    first = engine_request.score_from
    if media and first is not None and first < media[-1].end:
        raise InvalidRequest(
            f"cannot score from token {first}: tokens of an image have no scores, and the last one "
            f"ends at token {media[-1].end}: score what follows it",
            param="score_from",
        )


def _check_beams(engine_request: EngineRequest, limits: EngineLimits, context: int) -> None:
    """Reject a search that has too few slots, or no room to end an answer."""
    beams = engine_request.beams
    if beams is None:
        return
    if limits.recurrent:
        raise InvalidRequest(
            "this model keeps a state of all tokens so far, which hypotheses cannot share: ask for "
            "answers without beams",
            param="beam_size",
        )
    slots = min(limits.slots, limits.max_running_per_account or limits.slots)
    if beams.size > slots:
        raise InvalidRequest(
            f"beam_size is {beams.size} and a caller can have {slots} slots of this model: ask for "
            f"at most {slots} beams, or serve it with more slots (NUM_CACHE_SLOTS)",
            param="beam_size",
        )
    room = min(engine_request.max_tokens, context - len(engine_request.prompt))
    if room <= beams.min_tokens:
        raise InvalidRequest(
            f"min_tokens is {beams.min_tokens} and an answer has room for {room} tokens, its end "
            "token included: ask for fewer, for more max_tokens or for fewer beams",
            param="min_tokens",
        )
