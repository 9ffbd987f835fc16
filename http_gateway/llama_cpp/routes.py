"""llama.cpp's route /infill: an answer between two texts, for plug-ins of editors."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access.record import RequestRecord
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.bounds import bounded, checked, ranged, setting, sized, whole
from http_gateway.chats.answering import ChatAnswering, ChatQuestion, ChatStream
from http_gateway.chats.stopwatch import Stopwatch
from http_gateway.llama_cpp.reply import InfillAnswer, InfillPiece, InfillReply
from http_gateway.openai.tools import object_at, refuse_others
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import (
    JSON,
    WITH_MODEL,
    EventKinds,
    OpenAiError,
    RequestBody,
    Schema,
    operation,
)
from http_gateway.streams.sse import Feed, event, stop
from sax.errors import InvalidRequest, SaxError
from sax.fields.field import RequestRoute
from sax.fields.table import LLAMA_CPP_SAMPLING, field
from sax.types import GenerateRequest, ReplyOptions, SamplingParams, TokenChunk

_ROUTE = RequestRoute.INFILL
_EXTRA_TEXT = field(_ROUTE, "input_extra.text")
# llama.cpp's, where they differ from ours
_DEFAULTS: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
# Fields about how llama.cpp's server works: its slots, its cache and its clock
_LABELS = frozenset(
    {"cache_prompt", "id_slot", "n_keep", "samplers", "t_max_predict_ms", "t_max_prompt_ms"}
)
# Field -> the values besides null that change nothing. Any other value is refused.
_UNCHANGED: dict[str, tuple[object, ...]] = {
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "grammar": ("",),
    "ignore_eos": (False,),
    "json_schema": ({},),
    "logit_bias": ([], {}),
    "lora": ([],),
    "min_keep": (0,),
    "mirostat": (0,),
    "n_cache_reuse": (0,),
    "n_probs": (0,),
    "penalize_nl": (True, False),
    "post_sampling_probs": (False, True),
    "repeat_last_n": (64, -1),
    "return_progress": (False,),
    "return_tokens": (False,),
    "timings_per_token": (False,),
    "xtc_probability": (0,),
}
_REMARKS = {
    **dict.fromkeys(_LABELS, "How llama.cpp's server works."),
    "samplers": "The fields of sampling say what is done.",
    "t_max_predict_ms": "n_predict and n_indent bound the answer, which comes whole.",
    "model": "Without it, the only model there is.",
    "input_extra": "Files that stand before the text in front, each behind its name.",
    "prompt": "The beginning of the middle, which the answer continues.",
    "n_indent": "The answer ends before a line with fewer spaces than these.",
    "n_predict": "-1: to the end; 0: only into the prefix cache.",
    "response_fields": "Only these are in the reply, each under the path that was given.",
}


if TYPE_CHECKING:
    _Sampling = BaseModel
else:
    _Sampling = create_model(
        "InfillSampling",
        __config__=ConfigDict(extra="allow", strict=True, frozen=True),
        **{name: (setting(_ROUTE, name), None) for name in LLAMA_CPP_SAMPLING},
    )

_Whole = BeforeValidator(whole)


class InfillRequest(_Sampling):
    """POST /infill. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    input_prefix: Annotated[str, bounded(_ROUTE, "input_prefix")]
    input_suffix: Annotated[str, bounded(_ROUTE, "input_suffix")]
    model: Annotated[str, bounded(_ROUTE, "model")] | None = None
    input_extra: (
        Annotated[
            list[dict[str, object]], sized(_ROUTE, "input_extra"), bounded(_ROUTE, "input_extra")
        ]
        | None
    ) = None
    prompt: Annotated[str, bounded(_ROUTE, "prompt")] | None = None
    stream: Annotated[bool, checked(_ROUTE, "stream")] | None = None
    n_predict: (
        Annotated[int, ranged(_ROUTE, "n_predict"), checked(_ROUTE, "n_predict"), _Whole] | None
    ) = None
    n_indent: (
        Annotated[int, ranged(_ROUTE, "n_indent"), checked(_ROUTE, "n_indent"), _Whole] | None
    ) = None
    seed: Annotated[int, ranged(_ROUTE, "seed"), checked(_ROUTE, "seed"), _Whole] | None = None
    response_fields: (
        Annotated[list[str], sized(_ROUTE, "response_fields"), bounded(_ROUTE, "response_fields")]
        | None
    ) = None
    timeout: Annotated[float, ranged(_ROUTE, "timeout")] | None = None

    def check(self) -> None:
        """Raise InvalidRequest or UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _UNCHANGED, _LABELS, route=_ROUTE)
        _ = self.before
        if not self.before and not self.input_suffix:
            raise InvalidRequest(
                "input_prefix and input_suffix are empty: send the text around the answer",
                param="input_prefix",
            )

    @cached_property
    def before(self) -> str:
        """The text before the answer. Raises InvalidRequest or UnsupportedParameter."""
        files = [_file(each, f"input_extra[{n}]") for n, each in enumerate(self.input_extra or ())]
        return "".join([*files, self.input_prefix, self.prompt or ""])

    @property
    def only_cached(self) -> bool:
        """True if there is to be no answer: an editor wants its prompt in the prefix cache."""
        return self.n_predict == 0

    def sampling(self) -> SamplingParams:
        given: dict[str, Any] = dict(_DEFAULTS)
        for name, ours in LLAMA_CPP_SAMPLING.items():
            if (value := getattr(self, name)) is not None:
                given[ours] = tuple(cast("list[str]", value)) if isinstance(value, list) else value
        if self.seed is not None and self.seed >= 0:
            given["seed"] = self.seed
        if self.n_predict is not None and self.n_predict >= 0:
            given["max_tokens"] = max(1, self.n_predict)
        return SamplingParams(**given)


def _file(entry: object, at: str) -> str:
    parts = object_at(entry, at)
    name, text = parts.pop("filename", None), parts.pop("text", None)
    refuse_others({k: v for k, v in parts.items() if k != "time"}, at)
    if not isinstance(text, str) or not isinstance(name, str | None):
        raise InvalidRequest(f"{at}: send a filename and a text", param=at)
    _EXTRA_TEXT.check_text(text, at)
    return f"--- {name or 'snippet'} ---\n{text}\n\n"


_EXTRA: Schema = {
    "anyOf": [
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "filename": {"type": ["string", "null"]},
                    "text": {
                        "type": "string",
                        "maxLength": _EXTRA_TEXT.bytes,
                    },
                    "time": {},
                },
                "required": ["text"],
                "additionalProperties": False,
            },
            "maxItems": field(_ROUTE, "input_extra").count,
        },
        {"type": "null"},
    ]
}
_BODY = RequestBody(
    model=InfillRequest,
    route=_ROUTE,
    unchanged=_UNCHANGED,
    labels=_LABELS,
    replaced={"input_extra": _EXTRA},
    remarks=_REMARKS,
)


_EVENTS = EventKinds(InfillPiece, InfillReply, OpenAiError)
_OPERATION = operation(
    InfillReply, errors=OpenAiError, statuses=WITH_MODEL, body=_BODY, events=_EVENTS
)


class LlamaCppRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._answering = ChatAnswering(backend)

    def router(self) -> APIRouter:
        router = APIRouter(tags=["llama.cpp"])
        router.add_api_route("/infill", self.infill, methods=["POST"], **_OPERATION)
        return router

    async def infill(self, request: Request) -> Response:
        """Fill in the middle between two texts, streamed or not."""
        body = InfillRequest.model_validate_json(await read_body(request, RequestRoute.INFILL))
        body.check()
        model_id = await self._backend.catalog.resolve_or_only(body.model)
        watch = Stopwatch(time.perf_counter, RequestRecord.current().arrived_s)
        made = InfillAnswer(
            body.model or model_id,
            watch,
            indent=body.n_indent or 0,
            only_cached=body.only_cached,
            fields=body.response_fields or (),
        )
        question = self._question(request, body, model_id)
        feed = partial(_until, made.over, self._answering.feed(question))
        if body.stream:
            style = ChatStream(encode=made.encode, closing=made.closing, failure=_failure)
            return self._answering.stream(request, feed, made.answer, style)
        await self._answering.read(request, feed, made.answer, made.add)
        return Response(made.body(), media_type=JSON)

    def _question(self, request: Request, body: InfillRequest, model_id: str) -> ChatQuestion:
        generate = GenerateRequest(
            model_id=model_id,
            prompt=body.before,
            sampling=body.sampling(),
            reply=ReplyOptions(suffix=body.input_suffix),
            request_id=RequestRecord.current().id_in_cell(f"infill-{uuid.uuid4().hex}"),
        )
        limit_s = self._backend.limit_s(request, body.timeout)
        return ChatQuestion(generate=generate, limit_s=limit_s, names={"suffix": "input_suffix"})


async def _until(
    over: asyncio.Event, feed: Feed[TokenChunk], sink: Callable[[TokenChunk], None]
) -> None:
    """Feed values until there are no more, or the answer is over."""
    work, end = asyncio.ensure_future(feed(sink)), asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait((work, end), return_when=asyncio.FIRST_COMPLETED)
        if not over.is_set():
            await work
    finally:
        await stop(work, end)


def _failure(error: SaxError) -> bytes:
    return event(problems.openai_error(problems.describe(error)))
