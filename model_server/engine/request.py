"""Requests to an engine, their progress and their updates, as values."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from model_server.engine.media import MediaSpan, with_numbers
from model_server.engine.slot_write import check_biases
from model_server.engine.types import BeamSettings, Grammar, Hypothesis, RowResult, Sampling
from sax.errors import InvalidRequest, PromptTooLong, SaxError

Setting = TypeVar("Setting")
# complete: the grammar allows nothing more; unlike a stop token, the last token is the answer's.
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
    settings: tuple[object, ...] = ()  # of parts, at most one of each type

    def setting(self, kind: type[Setting]) -> Setting | None:
        """Return the setting of a type; None: the request has none."""
        return next((each for each in self.settings if isinstance(each, kind)), None)

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer; tokens of media are numbers below 0, equal for equal ones."""
        return [*with_numbers(self.prompt, self.media), *self.answer]


class Begun(msgspec.Struct, frozen=True):
    """Progress of a sequence, from which another engine can go on with it."""

    id: int
    answer: tuple[int, ...]  # tokens delivered
    scores: int = 0  # of the prompt's tokens, committed

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


class StepSpan(NamedTuple):
    """When the device computed a step, by `time.monotonic`: until it was read."""

    began_s: float
    read_s: float


UNTIMED = StepSpan(0.0, 0.0)


class RouteRows(NamedTuple):
    """The experts of some tokens of a sequence, one behind the other."""

    start: int  # position of the first token
    experts: np.ndarray  # u8 or u16[n, L, k], as of `RowResult.routes`


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
    routes: tuple[RouteRows, ...] = ()  # of one that asks for them, likewise


def check(request: EngineRequest, context: int) -> None:
    """Raise InvalidRequest for what could not be served even with the engine to itself."""
    length, generates = len(request.prompt), request.max_tokens > 0
    check_biases(request.sampling)
    if not length:
        raise InvalidRequest("the prompt has no tokens; send at least one", param="prompt")
    if request.score_from is None and not generates:
        raise InvalidRequest(
            f"max_tokens is {request.max_tokens}; ask for at least 1", param="max_tokens"
        )
    if length + generates > context:
        raise PromptTooLong(
            f"the prompt has {length} tokens and this model's maximum context length is {context} "
            f"tokens{', one of them for the answer' if generates else ''}: shorten the prompt, or "
            "serve the model with a larger --max_context or --kv_cache_bytes",
            param="prompt",
        )
