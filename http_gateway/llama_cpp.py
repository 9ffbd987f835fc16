"""llama.cpp's route /infill: an answer between two texts, for plug-ins of editors."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, cast

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access import RequestRecord
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.bounds import bounded, checked, ranged, setting, sized, whole
from http_gateway.chat_answer import (
    ChatAnswering,
    ChatQuestion,
    ChatStream,
    DividedAnswer,
    Stopwatch,
)
from http_gateway.openai.reply_schema import Shape
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
from http_gateway.sse import Feed, event, stop
from sax.errors import InvalidRequest, SaxError
from sax.fields.field import RequestRoute
from sax.fields.table import LLAMA_CPP_SAMPLING, field
from sax.types import GenerateRequest, ReplyOptions, SamplingParams, TokenChunk

StopType = Literal["none", "eos", "limit", "word"]


class InfillTimings(TypedDict):
    """Tokens and milliseconds of the prompt, and of the answer."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


class InfillPiece(msgspec.Struct):
    """A piece of a stream."""

    content: str
    tokens_predicted: int
    tokens_evaluated: int
    index: int = 0
    stop: bool = False


class InfillReply(TypedDict, total=False):
    """A whole reply, and the last event of a stream; or those fields that `response_fields` names,
    under these paths."""

    content: str
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    stop_type: StopType
    stopping_word: str
    timings: InfillTimings
    index: int
    stop: bool
    truncated: bool  # never: what does not fit is refused


_encode = msgspec.json.Encoder().encode


class InfillAnswer:
    """One answer as it comes."""

    def __init__(
        self,
        model: str,
        watch: Stopwatch,
        *,
        indent: int = 0,
        only_cached: bool = False,
        fields: Sequence[str] = (),
    ) -> None:
        """indent: of its lines, at least. only_cached: there is no answer. fields: paths of the
        reply; (): all."""
        self.answer = DividedAnswer(Shape())
        self.over = asyncio.Event()  # what comes from now on is not shown
        self._model = model
        self._watch = watch
        self._limit = IndentLimit(indent)
        self._silent = only_cached
        self._fields = fields
        self._texts: list[str] = []

    def add(self, chunk: TokenChunk) -> None:
        """Read a chunk of a whole reply."""
        self._texts.append(self._shown(chunk))

    def body(self) -> bytes:
        return self._last("".join(self._texts))

    def encode(self, chunk: TokenChunk) -> bytes:
        """Return the event of the next chunk of a stream, if it has one."""
        text = self._shown(chunk)
        if not text:
            return b""
        answer = self.answer
        return event(_encode(InfillPiece(text, answer.completion_tokens, answer.prompt_tokens)))

    def closing(self) -> bytes:
        return event(self._last(""))

    def _shown(self, chunk: TokenChunk) -> str:
        self._watch.token()
        if self._limit.ended:
            return ""
        self.answer.read(chunk)
        text = self._limit.push(chunk.text, last=chunk.finish_reason is not None)
        if self._limit.ended:
            self.answer.finish_reason = "length"
            self.over.set()
        return "" if self._silent else text

    def _last(self, content: str) -> bytes:
        answer, word = self.answer, self.answer.stop_reason
        kinds: dict[str | None, StopType] = {"length": "limit", "stop": "eos"}
        sequence = word if isinstance(word, str) else ""
        reply = InfillReply(
            content=content,
            model=self._model,
            tokens_predicted=answer.completion_tokens,
            tokens_evaluated=answer.prompt_tokens,
            tokens_cached=answer.cached_tokens,
            stop_type="word" if sequence else kinds.get(answer.finish_reason, "none"),
            stopping_word=sequence,
            timings=self._timings(),
            index=0,
            stop=True,
            truncated=False,
        )
        return _encode(_selected(reply, self._fields) if self._fields else reply)

    def _timings(self) -> InfillTimings:
        spent, answer = self._watch.durations(), self.answer
        prompt_ms, predicted_ms = (
            spent[name] / 1e6 for name in ("prompt_eval_duration", "eval_duration")
        )
        computed, made = answer.prompt_tokens - answer.cached_tokens, answer.completion_tokens
        return InfillTimings(
            cache_n=answer.cached_tokens,
            prompt_n=computed,
            prompt_ms=prompt_ms,
            prompt_per_second=1e3 * computed / prompt_ms if prompt_ms else 0.0,
            predicted_n=made,
            predicted_ms=predicted_ms,
            predicted_per_second=1e3 * made / predicted_ms if predicted_ms else 0.0,
        )


def _selected(reply: InfillReply, paths: Sequence[str]) -> dict[str, Any]:
    """Return the fields at these paths, each under its path; unknown ones are left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = reply
        for name in path.split("/"):
            level = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            value = level.get(name)
        if value is not None:
            found[path] = value
    return found


class IndentLimit:
    """Ends a text before the first line that is indented less than asked for.

    The first line is that of the cursor, and has no limit.
    """

    def __init__(self, least: int) -> None:
        """least: spaces and tabs that a line begins with."""
        self._least = least
        self._held = ""  # a line's end, and the blanks after it
        self.over = least == 0  # nothing more is looked for
        self.ended = False  # the text is at its end

    def push(self, text: str, *, last: bool = False) -> str:
        """Return what belongs to the text so far. last: no more comes."""
        if self.ended:
            return ""
        if self.over:
            return text
        text, self._held = self._held + text, ""
        shown, *lines = text.split("\n")
        for number, line in enumerate(lines):
            indent = len(line) - len(line.lstrip(" \t"))
            open_line = number == len(lines) - 1 and indent == len(line)
            if open_line and not last:
                self._held = f"\n{line}"
                return shown
            if indent < self._least and not open_line:
                self.ended = True
                return shown
            shown += f"\n{line}"
        return shown


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
        __config__=ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True),
        **{name: (setting(_ROUTE, name), None) for name in LLAMA_CPP_SAMPLING},
    )

_Whole = BeforeValidator(whole)


class InfillRequest(_Sampling):
    """POST /infill. null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

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
