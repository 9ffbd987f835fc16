"""A server with OpenAI's API: `/v1/completions` or `/v1/chat/completions`, streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from sax.cli.bench.target import AnswerPart
from sax.cli.bench.workload import PlannedRequest
from sax.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, SaxError, Unavailable
from sax.format import listing, quoted

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
