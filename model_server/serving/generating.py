"""Takes a request for an answer to its model's engine, and lets its chunks come back.

Checks the request, renders and encodes its prompt, and submits it. Works by callback, so a token
costs no task and no queue of its own. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.engine.types import RowResult
from model_server.grammars.constraint import Constraint, constraint_of
from model_server.loading.loaded import Loaded
from model_server.serving.admission import Admission, check_method, refusal
from model_server.serving.answers.checked_sink import check_after
from model_server.serving.answers.detokenizer import Detokenizer
from model_server.serving.answers.request_account import AnswerTrace
from model_server.serving.answers.resumed import finished, resumed
from model_server.serving.answers.running_request import RunningRequest, Sink, of_request
from model_server.serving.chats.divided_answer import (
    AnswerDivision,
    compiled,
    constraint_on,
    division_of,
)
from model_server.serving.chats.placeholders import with_images
from model_server.serving.chats.rendered_chat import Prompt, RenderedChat, is_chat, rendered
from model_server.serving.engine_request import make_engine_request, of_caller, prompt_ids, salt_of
from model_server.serving.lm_servable import LmServable
from model_server.serving.metrics.registry import ModelServerMetrics
from model_server.serving.remote_prefill import RemotePrefill
from model_server.serving.request_checks import (
    check_answer,
    check_asker,
    check_reply,
    check_sampling,
)
from model_server.serving.servables import Servables
from model_server.text.encoding import INLINE, EncodingThreads, to_encode
from sax.auth.acl import caller
from sax.errors import ReplicaLost, SaxError
from sax.tracing import NO_TRACER, TraceContext, Tracer
from sax.types import GenerateRequest

logger = logging.getLogger(__name__)

_CHARACTERS_PER_TOKEN = 8  # of an answer, by the time that its text takes


class Generating:
    """The start of every answer."""

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
            slow = constraint or request.answer or request.reply.suffix is not None
            if slow or _takes_long(request.prompt, loaded):
                running.follow(asyncio.create_task(self._encode(running, request, constraint)))
            else:
                ids = prompt_ids(request.prompt, loaded, request)
                division = division_of(request, loaded, request.prompt)
                made = make_engine_request(ids, request, loaded, thinking=division.budget)
                self._submit(running, self._asked(running, request, ids, made, division))
        except BaseException as exc:
            self._refuse(running, exc)
            raise
        return running

    def seeded(self, request: GenerateRequest) -> GenerateRequest:
        """Give a request without a seed the server's own, if it has one."""
        if self._seed is None or request.sampling.seed is not None:
            return request
        return replace(request, sampling=replace(request.sampling, seed=self._seed))

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
            running.account.trace = AnswerTrace(self._tracer, context, parent, request, now)

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
            check_after(running.check, loaded.tokenizer, grammar, request, division)
            words = sum(map(len, request.sampling.bad_words))  # are texts, too
            made = await self._encoding.run(
                to_encode(words, loaded.tokenizer) if words else 0,
                partial(make_engine_request, ids, request, loaded, grammar, division.budget),
            )
            asked = self._asked(running, request, ids, made, division)
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
        made: EngineRequest,
        division: AnswerDivision,
    ) -> EngineRequest:
        """Return the engine's request as the caller's, and let the running one expect its text."""
        loaded = running.servable.loaded
        running.expect(
            Detokenizer(
                loaded.tokenizer,
                ids,
                request.sampling,
                request.reply,
                own_text=is_chat(request.prompt) and not request.chat.continue_final_message,
                seed=made.sampling.seed,
                version=self._servables.version(request.model_id),
                division=division,
            ),
            "prompt" if made.beams is None else "beam search",
        )
        sharing = loaded.runner.limits.prefix_cache
        return of_caller(made, caller(), request.account, sharing)

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
            to_encode(characters(prompt), loaded.tokenizer),
            lambda: prompt_ids(prompt, loaded, request),
        )


def _takes_long(prompt: Prompt, loaded: Loaded) -> bool:
    """Return True for a prompt that a thread should encode."""
    return is_chat(prompt) or to_encode(characters(prompt), loaded.tokenizer) > INLINE


def characters(prompt: Prompt | RenderedChat) -> int:
    """Return about how many characters there are to encode; token ids cost less."""
    return len(prompt.text if isinstance(prompt, RenderedChat) else prompt)
