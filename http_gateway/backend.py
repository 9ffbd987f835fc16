"""Everything the routes of every API share: the cell, its catalog, limits and metrics."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, overload

from fastapi import Request
from starlette.types import Receive

from http_gateway.access import CallSpan, RequestRecord
from http_gateway.catalog import Catalog
from http_gateway.cell_client import CellClient
from http_gateway.config import GatewayConfig
from http_gateway.envelope import route_name
from http_gateway.images.image_fetcher import ImageFetcher
from http_gateway.images.image_link import ImageLink, decoded
from http_gateway.metrics import GatewayMetrics
from http_gateway.sse import Ending, disconnected, stop
from sax import tracing
from sax.chat import Image
from sax.client.attempts import shorter
from sax.errors import Cancelled, InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import IMAGE_BYTES, field
from sax.format import quoted
from sax.types import GenerateRequest, Message, TokenChunk
from sax.wire.request_bounds import check_image_size, check_images

_INLINE = 256 << 10  # characters of a data URL, decoded in well under a millisecond

T = TypeVar("T")

TIMEOUT_HEADER = "x-request-timeout"
_TIMEOUT = field(RequestRoute.CHAT, "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    client: CellClient
    catalog: Catalog
    config: GatewayConfig
    metrics: GatewayMetrics
    images: ImageFetcher

    def limit_s(self, request: Request, timeout_s: float | None = None) -> float:
        """Return the time limit of a request, in seconds.

        timeout_s: from its body. Raises InvalidRequest for a header out of range, or unlike it.
        """
        said = request.headers.get(TIMEOUT_HEADER)
        told_s = None if said is None else _seconds(said)
        if told_s is not None and timeout_s is not None and told_s != timeout_s:
            raise InvalidRequest(
                f"timeout is {timeout_s:g} and the header {TIMEOUT_HEADER} {told_s:g}: send only "
                "one of them",
                param="timeout",
            )
        own_s = self.config.request_timeout_s
        return shorter(own_s, shorter(told_s, timeout_s)) or own_s

    @overload
    async def with_images(
        self, prompt: tuple[Message, ...], param: str = ...
    ) -> tuple[Message, ...]: ...

    @overload
    async def with_images(
        self, prompt: str | tuple[Message, ...], param: str = ...
    ) -> str | tuple[Message, ...]: ...

    async def with_images(
        self, prompt: str | tuple[Message, ...], param: str = "messages"
    ) -> str | tuple[Message, ...]:
        """Return a chat with the images that it links to; a text as it is.

        Raises InvalidRequest naming the image, or `param` for too many.
        """
        return prompt if isinstance(prompt, str) else await with_images(prompt, self.images, param)

    async def run(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Run a call to the cell; if the client disconnects first, cancel it and count that."""
        try:
            return await while_connected(request.receive, work)
        except Cancelled:
            self.note_end(request, Ending.GONE)
            raise

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        """Pass the chunks of an answer to `sink`, and note what they say of this request's way."""
        record = RequestRecord.current()
        record.cell_ids.append(request.request_id)

        def note(chunk: TokenChunk) -> None:
            if chunk.queue_s:
                record.queue_s = max(record.queue_s or 0.0, chunk.queue_s)
            if chunk.answer_format is not None and chunk.answer_format.generic:
                record.generic_tools = True
            sink(chunk)

        if record.span is None:
            request = replace(request, traceparent=tracing.current())
            await self.client.generate_to(request, note, timeout_s=timeout_s)
        else:
            await self._traced(record.span.call(request), note, timeout_s)

    async def _traced(
        self, span: CallSpan, sink: Callable[[TokenChunk], None], timeout_s: float | None
    ) -> None:
        def note(chunk: TokenChunk) -> None:
            span.take(chunk)
            sink(chunk)

        try:
            await self.client.generate_to(span.request, note, timeout_s=timeout_s)
        except BaseException as error:
            span.end(error)
            raise
        span.end()

    def count(self, prompt_tokens: int, completion_tokens: int = 0) -> None:
        """Count the tokens of this request, however it ended: once, in the task that answers it."""
        record = RequestRecord.current()
        record.prompt_tokens += prompt_tokens
        record.completion_tokens += completion_tokens
        self.metrics.prompt_tokens.labels(record.model).inc(prompt_tokens)
        self.metrics.completion_tokens.labels(record.model).inc(completion_tokens)

    def on_first_token(self, request: Request) -> Callable[[], None]:
        """Return what to call when the answer begins."""
        record = RequestRecord.current()
        route = route_name(request.scope)
        histogram = self.metrics.first_token_seconds.labels(route, record.model)

        def note() -> None:
            record.first_token_s = time.perf_counter() - record.arrived_s
            histogram.observe(record.first_token_s)

        return note

    def note_end(self, request: Request, ending: Ending) -> None:
        """Note how a stream ended, or that a client did not wait for its answer."""
        record = RequestRecord.current()
        record.ending = ending.value
        labels = route_name(request.scope), record.model
        if ending is Ending.GONE:
            self.metrics.disconnects.labels(*labels).inc()
        elif ending is Ending.BROKEN:
            self.metrics.broken_streams.labels(*labels).inc()


def _seconds(said: str) -> float:
    """Read a time limit from a header. Raises InvalidRequest."""
    most_s = _TIMEOUT.most or math.inf
    try:
        limit_s = float(said)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s <= most_s:
        raise InvalidRequest(
            f"the header {TIMEOUT_HEADER} is {quoted(said)}: give seconds, a number above 0 and at "
            f"most {most_s:.0f}",
            param=TIMEOUT_HEADER,
        )
    return limit_s


async def with_images(
    messages: Sequence[Message], fetcher: ImageFetcher, param: str = "messages"
) -> tuple[Message, ...]:
    """Return the chat with its images. Raises InvalidRequest naming one that cannot be had, or
    `param` if there are too many."""
    links = [part for each in messages for part in each.images if isinstance(part, ImageLink)]
    if not links:
        return tuple(messages)
    # What base64 stands for, at least; those to be fetched are counted when they are there.
    sizes = [3 * max(0, len(link.url) - 100) // 4 if _is_data(link) else 0 for link in links]
    check_images(sizes, param)
    budget = IMAGE_BYTES - sum(sizes)
    found: list[Image] = []
    for link in links:  # one after the other: what is left for the next is known then
        image = await (_decoded(link) if _is_data(link) else fetcher.fetch(link, budget))
        kind = "sound" if image.kind == "audio" else image.kind
        check_image_size(len(image.data), image.name, kind)
        budget -= 0 if _is_data(link) else len(image.data)
        found.append(image)
    check_images([len(image.data) for image in found], param)
    images = iter(found)
    return tuple(_filled(each, images) for each in messages)


def _is_data(link: ImageLink) -> bool:
    return link.url.startswith("data:")


async def _decoded(link: ImageLink) -> Image:
    return decoded(link) if len(link.url) <= _INLINE else await asyncio.to_thread(decoded, link)


def _filled(message: Message, images: Iterator[Image]) -> Message:
    if isinstance(message.content, str):
        return message
    parts = (next(images) if isinstance(p, ImageLink) else p for p in message.content)
    return replace(message, content=tuple(parts))


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` and return its result; cancel it and raise Cancelled on disconnect."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        gone.result()
        raise Cancelled("the client disconnected")
    finally:
        await stop(task, gone)
