"""Handler for language model requests, shared by LMService and TokenService.

Checks a request, submits it to the model's engine and turns updates into chunks. Works by callback,
so a token costs no task and no queue of its own. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.engine.types import Grammar, RowResult
from model_server.grammars.constraint import Constraint, constraint_of
from model_server.loading.loaded import Loaded
from model_server.models.saxml_replies import SaxmlReplies
from model_server.serving.admission import Admission, check_method, refusal
from model_server.serving.answers.answer_trace import AnswerTrace
from model_server.serving.answers.constrained import check_after, compiled
from model_server.serving.answers.detokenizer import Detokenizer
from model_server.serving.answers.resumed import finished, resumed
from model_server.serving.answers.running_request import RunningRequest, Sink, of_request
from model_server.serving.chats.divided_answer import (
    UNDIVIDED,
    AnswerDivision,
    constraint_on,
    division_of,
)
from model_server.serving.chats.image_spans import with_images
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat, is_chat, rendered
from model_server.serving.engine_request import (
    check_answer,
    check_asker,
    check_ids,
    check_reply,
    check_sampling,
    make_engine_request,
    of_caller,
    prompt_ids,
    salt_of,
    score_engine_request,
)
from model_server.serving.lm_servable import LmServable
from model_server.serving.metrics.registry import ModelServerMetrics
from model_server.serving.query import begin_of, prompt_of, scored_ids, scored_prompt
from model_server.serving.query_cost import CostMeter
from model_server.serving.remote_prefill import RemotePrefill
from model_server.serving.servables import Servables
from model_server.text.encoding import INLINE, EncodingThreads, to_encode
from model_server.text.text_decoder import whole_text
from model_server.text.vocabulary_fit import check_rows
from sax.auth.acl import caller
from sax.errors import InvalidRequest, ReplicaLost, SaxError
from sax.tracing.trace_context import TraceContext
from sax.tracing.tracer import NO_TRACER, Tracer
from sax.types import (
    PLAIN_CHAT,
    ChatOptions,
    GenerateRequest,
    Message,
    ReplyOptions,
    SamplingParams,
    TokenChunk,
)

GENERATE, GENERATE_STREAM, SCORE = "lm.generate", "lm.generate_stream", "lm.score"
MM_GENERATE, MM_SCORE = "mm.generate", "mm.score"

logger = logging.getLogger(__name__)

_CHARACTERS_PER_TOKEN = 8  # of an answer, by the time that its text takes


class SuffixScores(NamedTuple):
    """Log-probabilities of suffixes, and the tokens of all of them with their prefixes."""

    logprobs: list[float]
    tokens: int


class Handler:
    def __init__(
        self,
        servables: Servables,
        metrics: ModelServerMetrics,
        admission: Admission,
        elsewhere: RemotePrefill | None = None,  # servers that prefill long prompts
        encoding: EncodingThreads | None = None,  # None: its own
        tracer: Tracer = NO_TRACER,
        *,
        seed: int | None = None,  # of requests without one; None: drawn for each
        rejects_early: bool = False,  # requests to a model without the islands to compute
    ) -> None:
        self._tracer = tracer
        self._seed = seed
        self._rejects_early = rejects_early
        self._servables = servables
        self._remote_prefill = elsewhere
        self._metrics = metrics
        self._encoding = encoding or EncodingThreads()
        self.admission = admission

    def start(self, request: GenerateRequest, method: str, sink: Sink) -> RunningRequest:
        """Check a request and submit it, a long prompt once a thread has encoded it; from then on
        `sink` receives its chunks or its error.

        Raises InvalidRequest and its subclasses, PermissionDenied, NotLoaded, QueueFull or
        ShuttingDown; `sink` is then never called.
        """
        request = self.seeded(request)
        running = self._begin(request.model_id, method, sink)
        running.request_id = request.request_id
        self._trace(running, request)
        try:
            loaded = running.servable.loaded
            check_sampling(request.sampling, loaded.ids)
            check_asker(request)
            check_reply(request, loaded)
            check_answer(request, loaded, self._servables.version(request.model_id))
            running.limit(request.timeout_s)
            constraint = constraint_of(request.sampling)
            if constraint or request.answer or _takes_long(request.prompt, loaded):
                running.follow(asyncio.create_task(self._encode(running, request, constraint)))
            else:
                ids = prompt_ids(request.prompt, loaded, request)
                division = division_of(request, loaded, request.prompt)
                self._submit(running, self._asked(running, request, ids, division=division))
        except BaseException as exc:
            self._refuse(running, exc)
            raise
        return running

    def seeded(self, request: GenerateRequest) -> GenerateRequest:
        """Give a request without a seed the server's own, if it has one."""
        if self._seed is None or request.sampling.seed is not None:
            return request
        return replace(request, sampling=replace(request.sampling, seed=self._seed))

    async def score(
        self,
        model_id: str,
        prefix: str | tuple[Message, ...],
        suffixes: Sequence[str],
        account: str = "",
        timeout_s: float | None = None,
        method: str = SCORE,
    ) -> SuffixScores:
        """Return the log-probability of each suffix after the prefix, read as Generate reads it, or
        after a chat as its answer; of none, none.

        Raises DeadlineExceeded after timeout_s.
        """
        if not suffixes:  # no scores, but for those only who might have them
            self._language_model(model_id, method)
            check_method(caller(), model_id, method, self._servables.acls(model_id))
        waiting = [
            self._score(model_id, prefix, suffix, account, timeout_s, method) for suffix in suffixes
        ]
        tasks = [asyncio.ensure_future(one) for one in waiting]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return SuffixScores([score for score, _ in found], sum(tokens for _, tokens in found))

    async def tokenize(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        add_special_tokens: bool | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ) -> tuple[list[int], int]:
        """Return the ids of a prompt as `start` would compute them, and the model's context."""
        loaded = self._called_model(model_id).loaded
        reply = ReplyOptions(add_special_tokens=add_special_tokens)
        request = GenerateRequest(model_id=model_id, prompt=prompt, reply=reply)
        asked = await rendered(prompt, loaded, chat, self._owner(request, loaded))
        ids = await self._encoded(asked, loaded, request)
        return ids, loaded.runner.limits.max_context

    async def token_texts(self, model_id: str, ids: Sequence[int]) -> list[str]:
        """Return the text of each token by itself, control tokens included."""
        text_of = self._called_model(model_id).loaded.tokenizer.token_text
        return await self._encoding.run(len(ids), lambda: [text_of(token_id) for token_id in ids])

    async def detokenize(self, model_id: str, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens written out. Raises InvalidRequest for an
        id outside the vocabulary."""
        tokenizer = self._called_model(model_id).loaded.tokenizer
        check_ids("tokens", ids, tokenizer.vocab_size)
        decoder = tokenizer.decoder(control=True)
        return await self._encoding.run(len(ids), lambda: whole_text(decoder, ids))

    def defaults(self, model_id: str) -> tuple[SamplingParams, int]:
        """Return default sampling parameters and samples of a Saxml request. Raises NotLoaded."""
        loaded = self._generating(model_id).loaded
        return loaded.defaults, loaded.samples

    def serves(self, model_id: str, method: str) -> bool:
        """Return True if this is a language model with this method. Raises NotLoaded."""
        servable = self._servables.get(model_id)
        return isinstance(servable, LmServable) and method in servable.methods

    def cost_meter(self, model_id: str, method: str) -> CostMeter:
        """Begin to measure what a request costs. Raises NotLoaded."""
        return self._language_model(model_id, method).cost_meter()

    def query(self, model_id: str, text: str) -> Prompt:
        """Return the prompt for a Saxml query. Raises NotLoaded, InvalidRequest."""
        return prompt_of(text, self._generating(model_id).loaded)

    async def query_begin(self, model_id: str, text: str, prompt: Prompt) -> str:
        """Return what the answers to a Saxml query begin with. Raises NotLoaded, InvalidRequest."""
        loaded = self._generating(model_id).loaded
        if not loaded.replies.begins_with_query:
            return ""
        ids = await self._encoded(await rendered(prompt, loaded), loaded)
        return begin_of(text, ids, loaded)

    def replies(self, model_id: str) -> SaxmlReplies:
        """Return the form of Saxml's answers. Raises NotLoaded."""
        return self._generating(model_id).loaded.replies

    def answers_ids(self, model_id: str) -> bool:
        """True if a Saxml answer is a list of token ids. Raises NotLoaded."""
        return self._generating(model_id).loaded.tokenized_output

    def _begin(self, model_id: str, method: str, sink: Sink) -> RunningRequest:
        self.admission.check_open()
        servable = self._language_model(model_id, method)
        check_method(caller(), model_id, method, self._servables.acls(model_id))
        self._check_awake(servable)
        running = RunningRequest(servable, method, sink, self._metrics, self.admission.leave)
        self.admission.enter()
        return running

    def _check_awake(self, servable: LmServable) -> None:
        """Raise ReplicaLost for a model without the islands to compute, if such are refused."""
        if self._rejects_early and not servable.computes:
            self.admission.rejections.add(time.monotonic())
            raise ReplicaLost(
                f"{servable.model_id} is dormant here: {servable.lost_islands}; try another replica"
            )

    def _trace(self, running: RunningRequest, request: GenerateRequest) -> None:
        parent = TraceContext.parse(request.traceparent) if request.traceparent else None
        context = self._tracer.start(parent)
        if context is not None and context.sampled:
            now = time.time_ns(), time.monotonic()
            running.trace = AnswerTrace(self._tracer, context, parent, request, now)

    def _called_model(self, model_id: str) -> LmServable:
        """Return a model that the caller may use. Raises NotLoaded, PermissionDenied."""
        servable = self._generating(model_id)
        check_method(caller(), model_id, GENERATE, self._servables.acls(model_id))
        return servable

    def _generating(self, model_id: str) -> LmServable:
        """Return a model that generates: whatever does also streams, which Generate may be without.

        Raises as `_language_model`.
        """
        return self._language_model(model_id, GENERATE_STREAM)

    def _language_model(self, model_id: str, method: str) -> LmServable:
        """Raise NotLoaded, or InvalidRequest for a model without this method."""
        servable = self._servables.get(model_id)
        if not isinstance(servable, LmServable) or method not in servable.methods:
            raise refusal(servable, method)
        return servable

    async def _encode(
        self, running: RunningRequest, request: GenerateRequest, constraint: Constraint | None
    ) -> None:
        """Submit a request with a long prompt, a constraint or an answer begun elsewhere. Cancelled
        with the request, so others never wait."""
        loaded = running.servable.loaded
        try:
            prompt = await rendered(
                request.prompt, loaded, request.chat, self._owner(request, loaded)
            )
            running.holds = prompt.images if isinstance(prompt, RenderedChat) else ()
            constraint = constraint_on(constraint, request, loaded, prompt)
            grammar = constraint and await compiled(constraint, loaded)
            ids = await self._encoded(prompt, loaded, request)
            division = division_of(request, loaded, prompt)
            check_after(running, grammar, request, division)
            asked = self._asked(running, request, ids, grammar, division)
            if running.holds:
                asked = await self._encoding.run(
                    len(ids), partial(with_images, asked, running.holds, loaded)
                )
            if request.answer is not None:
                work = partial(resumed, asked, running.answer, request.answer)
                characters = _CHARACTERS_PER_TOKEN * len(request.answer.token_ids)
                asked = await self._encoding.run(characters, work)
                running.servable.resumed += 1
            self._submit(running, asked)
        except SaxError as error:
            self.admission.refused(error)
            running.fail(error)
        except Exception:
            logger.exception("a prompt could not be encoded%s", of_request(running.request_id))
            running.fail(running.internal_error())

    def _asked(
        self,
        running: RunningRequest,
        request: GenerateRequest,
        ids: Sequence[int],
        grammar: Grammar | None = None,
        division: AnswerDivision = UNDIVIDED,
    ) -> EngineRequest:
        """Return the engine's request, and let the running one expect its text."""
        loaded = running.servable.loaded
        asked = make_engine_request(ids, request, loaded, grammar, division.budget)
        running.expect(
            Detokenizer(
                loaded.tokenizer,
                ids,
                request.sampling,
                request.reply,
                own_text=is_chat(request.prompt) and not request.chat.continue_final_message,
                seed=asked.sampling.seed,
                version=self._servables.version(request.model_id),
                division=division,
            ),
            "prompt" if asked.beams is None else "beam search",
        )
        sharing = loaded.runner.limits.prefix_cache
        return of_caller(asked, caller(), request.account, sharing)

    def _submit(self, running: RunningRequest, asked: EngineRequest) -> None:
        if (finish := finished(asked, running.servable.loaded.runner.limits)) is not None:
            # Nothing to compute. Later, as a step's result would be.
            done = SequenceUpdate(0, RowResult(), finish)
            asyncio.get_running_loop().call_soon(running.receive, done)
            return
        remote = self._remote_prefill
        if remote is None or not remote.take(running, asked):
            running.submit(asked)

    def _owner(self, request: GenerateRequest, loaded: Loaded) -> str:
        """Return the name of those who share what is kept of a request's images."""
        sharing = loaded.runner.limits.prefix_cache
        return salt_of(caller(), request.account, request.cache_salt, sharing)

    def _refuse(self, running: RunningRequest, exc: BaseException) -> None:
        self.admission.refused(exc)
        running.refuse(exc)

    async def _encoded(
        self,
        prompt: Prompt | RenderedChat,
        loaded: Loaded,
        request: GenerateRequest | None = None,
    ) -> list[int]:
        return await self._encoding.run(
            to_encode(_characters(prompt), loaded.tokenizer),
            lambda: prompt_ids(prompt, loaded, request),
        )

    async def _score(
        self,
        model_id: str,
        prefix: str | tuple[Message, ...],
        suffix: str,
        account: str,
        timeout_s: float | None,
        method: str,
    ) -> tuple[float, int]:
        """Return the score, and the tokens that it took."""
        outcome: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        running = self._begin(model_id, method, lambda chunk: _settle(outcome, chunk))
        loaded = running.servable.loaded
        running.limit(timeout_s)
        try:
            prompt = scored_prompt(prefix, loaded) if isinstance(prefix, str) else prefix
            sharing = loaded.runner.limits.prefix_cache
            owner = salt_of(caller(), account, "", sharing)
            asked = await rendered(prompt, loaded, owner=owner)
            running.holds = asked.images if isinstance(asked, RenderedChat) else ()
            ids, target = await self._encoding.run(
                to_encode(_characters(asked) + len(suffix), loaded.tokenizer),
                lambda: scored_ids(asked, suffix, loaded),
            )
            check_scorable(ids, target)
            check_rows((*ids, *target), loaded.vocab, loaded.tokenizer)
            asked_for = score_engine_request(ids, target)
            if running.holds:
                asked_for = await self._encoding.run(
                    len(ids), partial(with_images, asked_for, running.holds, loaded)
                )
            running.submit(of_caller(asked_for, caller(), account, sharing))
        except BaseException as exc:
            self._refuse(running, exc)
            raise
        try:
            score = loaded.replies.scored(await outcome, len(target))
            return score, len(ids) + len(target)
        finally:
            running.cancel()


def _settle(outcome: asyncio.Future[float], chunk: TokenChunk | SaxError) -> None:
    if outcome.done():
        return
    if isinstance(chunk, SaxError):
        outcome.set_exception(chunk)
    else:
        outcome.set_result(chunk.score)


def check_scorable(prefix: Sequence[int], suffix: Sequence[int]) -> None:
    """Raise InvalidRequest for a prefix or a suffix without tokens."""
    if not prefix:
        raise InvalidRequest(
            "prefix is empty and this model has no start token: send a prefix of one token or more",
            param="prefix",
        )
    if not suffix:
        raise InvalidRequest("suffix holds a text without tokens: leave it out", param="suffix")


def _takes_long(prompt: Prompt, loaded: Loaded) -> bool:
    """Return True for a prompt that a thread should encode."""
    return is_chat(prompt) or to_encode(_characters(prompt), loaded.tokenizer) > INLINE


def _characters(prompt: Prompt | RenderedChat) -> int:
    """Return about how many characters there are to encode; token ids cost less."""
    return len(prompt.text if isinstance(prompt, RenderedChat) else prompt)
