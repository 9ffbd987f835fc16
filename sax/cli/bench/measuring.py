"""Measuring one target from the command line: opens it, warms it up, runs, shows progress."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from sax.cli.bench.load_plan import PlannedRequest
from sax.cli.bench.report import Outcome
from sax.client import AsyncClient
from sax.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, SaxError, Unavailable
from sax.format import listing, quoted
from sax.types import GenerateRequest, Message, SamplingParams

# Interface of whatever answers the requests of a benchmark.


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A part of an answer, as it arrives."""

    shown: bool  # a reader sees more text or tokens than before
    tokens: int | None = None  # of the answer so far; None: not told
    prompt_tokens: int | None = None


class BenchTarget(Protocol):
    """A server that is measured."""

    @property
    def subject(self) -> dict[str, Any]:
        """Its name and how it is asked, for the report."""
        ...

    async def prepare(self) -> None:
        """Find out what it takes, before anything is measured. Raises SaxError."""
        ...

    def answer(self, request: PlannedRequest) -> AsyncGenerator[AnswerPart, None]:
        """Stream one answer. Raises SaxError."""
        ...


# Fields beyond OpenAI's that make all answers equally long, the best first: a server that refuses
# one is asked with the next. OpenAI's own takes none, and its answers may end early.
_LENGTHS: tuple[dict[str, Any], ...] = (
    {"ignore_eos": True, "min_tokens": None},  # None: as many as max_tokens
    {"ignore_eos": True},
    {"min_tokens": None},
    {},
)
_TOLD = 300  # characters of an error's body


class OpenAiTarget:
    """Greedy answers, of exactly as many tokens as asked for if the server can be told to."""

    def __init__(self, http: httpx.AsyncClient, url: str, model: str | None, chat: bool) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        self._http, self._base, self._chat = http, base, chat
        self._model = model or ""
        self._fields: dict[str, Any] = {}

    @property
    def subject(self) -> dict[str, Any]:
        return {
            "url": self._base,
            "model": self._model,
            "api": "/v1/chat/completions" if self._chat else "/v1/completions",
            "ignores_end": not self._fields.keys().isdisjoint(_LENGTHS[0]),
        }

    async def prepare(self) -> None:
        """Find the model, if none was named, and the fields that the server takes."""
        self._model = self._model or await self._only_model()
        for usage in ({"stream_options": {"include_usage": True}}, {}):
            for fields in _LENGTHS:
                self._fields = {**fields, **usage}
                try:
                    async for _ in self.answer(PlannedRequest("Hello", 2)):
                        pass
                except InvalidRequest:
                    if not self._fields:
                        raise
                else:
                    return

    async def answer(self, request: PlannedRequest) -> AsyncGenerator[AnswerPart, None]:
        path = "/v1/chat/completions" if self._chat else "/v1/completions"
        try:
            async with self._http.stream(
                "POST", self._base + path, json=self._body(request)
            ) as response:
                if not response.is_success:
                    raise _refused(response.status_code, await response.aread())
                done = False
                async for line in response.aiter_lines():
                    done = done or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        yield self._part(_event(line.removeprefix("data: ")))
                if not done:
                    raise Unavailable("the stream ended before its end")
        except httpx.TimeoutException:
            raise DeadlineExceeded("no answer within --timeout") from None
        except httpx.HTTPError as error:
            raise self._lost(error) from None

    def _body(self, request: PlannedRequest) -> dict[str, Any]:
        asked = (
            {"messages": [{"role": "user", "content": request.prompt}]}
            if self._chat
            else {"prompt": request.prompt}
        )
        fields = {
            name: request.tokens if value is None else value for name, value in self._fields.items()
        }
        body = {"model": self._model, "max_tokens": request.tokens, "temperature": 0}
        return {**body, **asked, **fields, "stream": True}

    def _part(self, event: Mapping[str, Any]) -> AnswerPart:
        if "error" in event:
            raise Unavailable(f"in mid-stream: {json.dumps(event['error'])[:_TOLD]}")
        usage: Mapping[str, int] = event.get("usage") or {}
        return AnswerPart(
            any(_shown(choice) for choice in event.get("choices") or ()),
            usage.get("completion_tokens"),
            usage.get("prompt_tokens"),
        )

    def _lost(self, error: httpx.HTTPError) -> SaxError:
        return Unavailable(f"{self._base}: {error or type(error).__name__}")

    async def _only_model(self) -> str:
        try:
            response = await self._http.get(f"{self._base}/v1/models")
        except httpx.HTTPError as error:
            raise self._lost(error) from None
        if not response.is_success:
            raise _refused(response.status_code, response.content)
        names = [each["id"] for each in response.json()["data"]]
        if len(names) != 1:
            found = listing(names) if names else "none"
            raise ModelNotFound(f"{self._base} has the models {found}: choose one with --model")
        return names[0]


def _event(text: str) -> Mapping[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        raise Unavailable(f"an event is not JSON: {quoted(text[:_TOLD])}") from None


def _shown(choice: Mapping[str, Any]) -> bool:
    delta: Mapping[str, Any] = choice.get("delta") or {}
    parts = ("content", "reasoning_content", "reasoning", "tool_calls")
    return bool(choice.get("text")) or any(delta.get(part) for part in parts)


def _refused(status: int, body: bytes) -> SaxError:
    text = f"HTTP {status}: {quoted(body.decode(errors='replace')[:_TOLD])}"
    return InvalidRequest(text) if status in (400, 422) else Unavailable(text)


Progress = Callable[["BenchRun"], None]


@dataclass
class BenchRun:
    """The outcomes so far."""

    target: BenchTarget
    total: int
    clock: Callable[[], float] = time.perf_counter
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    running: int = 0
    stopped: bool = False  # before its end, by Ctrl-C
    _began_s: float | None = None

    async def send(
        self, requests: Sequence[PlannedRequest], concurrency: int | None, report: Progress
    ) -> None:
        """Send the requests at their times, or as soon as one of `concurrency` streams is free.

        Returns early when its task is cancelled: what was answered until then is in `outcomes`.
        """
        self._began_s = self.clock()
        free = asyncio.Semaphore(concurrency or len(requests) or 1)
        tasks: list[asyncio.Task[None]] = []
        unfinished = 0
        try:
            for request in requests:
                await self._wait_for(request)
                await free.acquire()
                tasks.append(asyncio.create_task(self._measure(request, free, report)))
            await asyncio.wait(tasks)  # unlike gather, it leaves them alone when it is cancelled
        except asyncio.CancelledError:
            self.stopped, unfinished = True, self.running
            if (own := asyncio.current_task()) is not None:
                own.uncancel()
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        self.running = unfinished

    async def _wait_for(self, request: PlannedRequest) -> None:
        if request.at_s is not None:
            await asyncio.sleep(max(0.0, request.at_s - self.elapsed_s))

    async def _measure(
        self, request: PlannedRequest, free: asyncio.Semaphore, report: Progress
    ) -> None:
        self.running += 1
        try:
            self.outcomes.append(await self._outcome(request))
        finally:
            self.running -= 1
            free.release()
        report(self)

    async def _outcome(self, request: PlannedRequest) -> Outcome:
        # From when it was due: that a stream was not free, or this process late, counts as waiting.
        sent_s = self.elapsed_s if request.at_s is None else request.at_s
        arrived: list[float] = []
        tokens, prompt_tokens, error = None, 0, ""
        try:
            async for part in self.target.answer(request):
                if part.shown:
                    arrived.append(self.elapsed_s)
                tokens = tokens if part.tokens is None else part.tokens
                prompt_tokens = part.prompt_tokens or prompt_tokens
        except SaxError as failure:
            error = failure.text
        return Outcome(
            sent_s=sent_s,
            ended_s=self.elapsed_s,
            pieces_s=tuple(arrived),
            prompt_tokens=prompt_tokens,
            tokens=len(arrived) if tokens is None else tokens,
            wanted=request.tokens,
            error=error,
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first request could be sent; 0 before."""
        return 0.0 if self._began_s is None else self.clock() - self._began_s


class CellTarget:
    """Greedy answers, of exactly as many tokens as asked for."""

    def __init__(
        self, client: AsyncClient, model: str, chat: bool, timeout_s: float | None
    ) -> None:
        self._client, self._model, self._chat = client, model, chat
        self._timeout_s = timeout_s

    @property
    def subject(self) -> dict[str, Any]:
        api = "SDK, chat" if self._chat else "SDK"
        return {"model": self._model, "api": api, "ignores_end": True}

    async def prepare(self) -> None:
        async for _ in self.answer(PlannedRequest("Hello", 2)):
            pass

    async def answer(self, request: PlannedRequest) -> AsyncGenerator[AnswerPart, None]:
        prompt = (Message("user", request.prompt),) if self._chat else request.prompt
        sampling = SamplingParams(temperature=0.0, max_tokens=request.tokens, ignore_eos=True)
        asked = GenerateRequest(model_id=self._model, prompt=prompt, sampling=sampling)
        async for chunk in self._client.generate(asked, self._timeout_s):
            yield AnswerPart(
                bool(chunk.token_ids or chunk.text),
                chunk.completion_tokens or None,
                chunk.prompt_tokens or None,
            )


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """The server that the command line names."""

    model: str | None  # None: the only one at `url`
    url: str | None  # None: a cell, through the SDK
    admin: str | None
    chat: bool
    api_key: str | None
    timeout_s: float


def measure(
    choice: TargetChoice,
    requests: Sequence[PlannedRequest],
    concurrency: int | None,
    report: Progress,
) -> BenchRun:
    """Send the requests; Ctrl-C ends it early. Raises SaxError if the target takes none.

    report: called before the first request and after each answer.
    """

    async def run() -> BenchRun:
        async with _opened(choice) as target:
            await target.prepare()
            made = BenchRun(target, len(requests))
            report(made)
            await made.send(requests, concurrency, report)
            return made

    return asyncio.run(run())


@asynccontextmanager
async def _opened(choice: TargetChoice) -> AsyncGenerator[BenchTarget]:
    if choice.url is None:
        async with AsyncClient(choice.admin) as client:
            yield CellTarget(client, choice.model or "", choice.chat, choice.timeout_s)
        return
    import httpx

    headers = {"authorization": f"Bearer {choice.api_key}"} if choice.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=choice.timeout_s) as http:
        yield OpenAiTarget(http, choice.url, choice.model, choice.chat)
