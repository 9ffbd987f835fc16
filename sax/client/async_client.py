"""Client of one cell for asyncio: operators' calls go to the admin, requests to replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from google.protobuf.message import Message as Protobuf

from sax.activity import SERVED_PHASES, ServedPhase
from sax.client.admin import Admin
from sax.client.attempts import ANY_ROUTE, RetryLimits, Route
from sax.client.connection import ModelServerConnection
from sax.client.history import HistoryCalls
from sax.client.locator import Locator
from sax.client.operator_calls import OperatorCalls
from sax.client.pass_calls import PassCalls
from sax.client.routing import ANYWHERE, Affinity, prefix_affinity
from sax.client.weights import WeightCalls
from sax.passes import Gradients
from sax.proto import lm_pb2, tokens_pb2
from sax.speech import (
    SpeechRequest,
    SpokenPart,
    TranscriptPart,
    TranscriptRequest,
    WholeSound,
    WholeTranscript,
    whole_sound,
    whole_transcript,
)
from sax.types import (
    PLAIN_CHAT,
    ChatOptions,
    GenerateRequest,
    Message,
    SaxmlSamples,
    TokenChunk,
    Tokenized,
)
from sax.wire import services
from sax.wire.embed import decode_gradients, encode_embed_question, encode_gradient
from sax.wire.extra_inputs import ExtraInputs, encode_custom, encode_question, encode_score
from sax.wire.prompts import encode_detokenize, encode_tokenize
from sax.wire.services import Reply, RpcMethod
from sax.wire.speech import decode_part, decode_spoken, encode_speak, encode_transcribe

_PHASES = "/sax.tokens.TokenService/Phases"
_TOKENIZE = RpcMethod("/sax.tokens.TokenService/Tokenize", tokens_pb2.TokenizeResponse)
_DETOKENIZE = RpcMethod("/sax.tokens.TokenService/Detokenize", tokens_pb2.DetokenizeResponse)

Item = TypeVar("Item")


class RequestCalls(PassCalls):
    """Mixin: requests to replicas that the locator picks."""

    def generate(
        self, request: GenerateRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """Stream the answer; closing the iterator cancels it on the server.

        Raises ModelNotFound, ModelNotReady, QueueFull, InvalidRequest and its subclasses,
        ReplicaLost if a replica dies mid-answer, DeadlineExceeded after timeout_s.
        """
        return self._locator.generate(request, timeout_s)

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        """`generate` by callback, at less than half the cost per token: `sink` gets each chunk as
        it arrives and must not block. Cancelling this task cancels the answer on the server."""
        await self._locator.generate_to(request, sink, timeout_s)

    async def phases(
        self, request_ids: Sequence[str], timeout_s: float = 1.0
    ) -> dict[str, ServedPhase]:
        """Return how far requests of this client are, by their `request_id`.

        Those that are over, or whose server does not tell in time, are left out.
        """
        request = tokens_pb2.PhasesRequest(request_ids=request_ids)
        reply = tokens_pb2.PhasesResponse
        servers = self._locator.replicas.busy if request_ids else []
        asked = (each.call(_PHASES, request, reply, timeout_s) for each in servers)
        replies = await asyncio.gather(*asked, return_exceptions=True)
        told = [one for each in replies if isinstance(each, reply) for one in each.requests]
        known: dict[str, ServedPhase] = {phase: phase for phase in SERVED_PHASES}
        return {one.request_id: known[one.phase] for one in told if one.phase in known}

    async def tokenize(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        timeout_s: float | None = None,
        *,
        add_special_tokens: bool | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ) -> tuple[Sequence[int], int]:
        """Return the token ids of a text or chat as the model sees them, and its context length.

        add_special_tokens: the start token, which otherwise a text gets and a chat does not.
        """
        request = encode_tokenize(model_id, prompt, add_special_tokens, chat)
        reply = await self._call(_TOKENIZE, model_id, request, timeout_s)
        return tuple(reply.ids), reply.max_context

    async def tokenize_texts(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        timeout_s: float | None = None,
        *,
        add_special_tokens: bool | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ) -> Tokenized:
        """Like `tokenize`, with the text of each token."""
        special = add_special_tokens
        request = encode_tokenize(model_id, prompt, special, chat, token_texts=True)
        reply = await self._call(_TOKENIZE, model_id, request, timeout_s)
        return Tokenized(tuple(reply.ids), reply.max_context, tuple(reply.token_texts))

    async def detokenize(
        self, model_id: str, ids: Sequence[int], timeout_s: float | None = None
    ) -> str:
        """Return the text of token ids; control tokens are written out.

        Raises InvalidRequest for an id outside the model's vocabulary.
        """
        request = encode_detokenize(model_id, ids)
        return (await self._call(_DETOKENIZE, model_id, request, timeout_s)).text

    async def score(
        self,
        model_id: str,
        prefix: str,
        suffixes: Sequence[str],
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> list[float]:
        """Return the log-probability of each suffix after the prefix.

        A model with a chat template reads the prefix as a user's message and a suffix as the
        assistant's answer, unless it was published with QUERY_FORMAT="raw".
        """
        request = encode_score(model_id, prefix, suffixes, extra_inputs)
        affinity = prefix_affinity(model_id, prefix)
        reply = await self._call(services.SCORE, model_id, request, timeout_s, route, affinity)
        return [*reply.logp]

    async def custom(
        self,
        model_id: str,
        request: bytes,
        method: str = "",
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> bytes:
        """Call Saxml's CustomService.Custom on a custom model.

        Without a method, calls the one named `custom`, or the only one.
        """
        message = encode_custom(model_id, request, method, extra_inputs)
        reply = await self._call(services.CUSTOM, model_id, message, timeout_s, route)
        return reply.response

    async def saxml_embed(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> list[float]:
        """Saxml's LMService.Embed: return the vector of one text."""
        request = encode_embed_question(model_id, text, extra_inputs)
        reply = await self._call(services.EMBED, model_id, request, timeout_s, route)
        return [*reply.embedding]

    async def gradient(
        self,
        model_id: str,
        prefix: str,
        suffix: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> Gradients:
        """Saxml's LMService.Gradient: the log-probability of a suffix after a prefix, and the
        gradients of the loss of both with respect to the tensors the model was published for."""
        request = encode_gradient(model_id, prefix, suffix, extra_inputs)
        reply = await self._call(services.GRADIENT, model_id, request, timeout_s, route)
        return decode_gradients(reply)

    async def saxml_generate(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> list[tuple[str, float]]:
        """Saxml's LMService.Generate: return every sample with its score, best first."""
        sampled = await self.saxml_generate_counted(
            model_id, text, extra_inputs, timeout_s, route=route
        )
        return sampled.texts

    async def saxml_generate_counted(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> SaxmlSamples:
        """`saxml_generate` with the tokens that it took; 0 from older model servers."""
        request = encode_question(model_id, text, extra_inputs)
        affinity = prefix_affinity(model_id, text)
        reply = await self._call(services.GENERATE, model_id, request, timeout_s, route, affinity)
        texts = [(answer.text, answer.score) for answer in reply.texts]
        return SaxmlSamples(texts, reply.prompt_tokens, reply.completion_tokens)

    def saxml_generate_stream(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> AsyncGenerator[lm_pb2.GenerateStreamResponse, None]:
        """Saxml's LMService.GenerateStream: yield its messages."""
        request = encode_question(model_id, text, extra_inputs)

        def ask(
            replica: ModelServerConnection, left_s: float | None
        ) -> AsyncGenerator[lm_pb2.GenerateStreamResponse, None]:
            return replica.call_stream(
                services.GENERATE_STREAM.path, request, services.GENERATE_STREAM.reply, left_s
            )

        return _stream(
            self._locator, model_id, ask, timeout_s, route, prefix_affinity(model_id, text)
        )

    def transcribe_stream(
        self, request: TranscriptRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[TranscriptPart, None]:
        """Yield the duration of a sound, then what it says, window by window; closing the iterator
        cancels it on the server.

        Raises InvalidRequest for a file that is no sound, a language that the model does not know
        or a model of another kind, QueueFull, ReplicaLost if a replica dies after the first part.
        """
        message = encode_transcribe(request)
        return self._parts(services.TRANSCRIBE, message, decode_part, timeout_s)

    async def transcribe(
        self, request: TranscriptRequest, timeout_s: float | None = None
    ) -> WholeTranscript:
        """Return what a sound says, with the times of its segments. Raises as
        `transcribe_stream`."""
        async with aclosing(self.transcribe_stream(request, timeout_s)) as parts:
            return whole_transcript([part async for part in parts])

    def speak_stream(
        self, request: SpeechRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[SpokenPart, None]:
        """Yield the bytes of a sound file that says a text, piece by piece. Raises as
        `transcribe_stream`, UnsupportedParameter for a format that the server cannot write."""
        return self._parts(services.SPEAK, encode_speak(request), decode_spoken, timeout_s)

    async def speak(self, request: SpeechRequest, timeout_s: float | None = None) -> WholeSound:
        """Return a sound file with its length in its header. Raises as `speak_stream`."""
        whole = replace(request, whole=True)
        async with aclosing(self.speak_stream(whole, timeout_s)) as parts:
            return whole_sound([part async for part in parts])

    async def ask_service(
        self,
        model_id: str,
        method: RpcMethod[Reply],
        request: Protobuf,
        timeout_s: float | None = None,
        *,
        route: Route = ANY_ROUTE,
    ) -> Reply:
        """Call a method of `sax.wire.services`, with its own request and reply.

        Raises UnsupportedParameter if the model's server has no such method.
        """
        return await self._call(method, model_id, request, timeout_s, route)

    def _parts(
        self,
        method: RpcMethod[Reply],
        message: Any,
        decode: Callable[[Reply], Item],
        timeout_s: float | None,
    ) -> AsyncGenerator[Item, None]:
        async def ask(
            replica: ModelServerConnection, left_s: float | None
        ) -> AsyncGenerator[Item, None]:
            replies = replica.call_stream(method.path, message, method.reply, left_s)
            async with aclosing(replies):
                async for reply in replies:
                    yield decode(reply)

        return _stream(self._locator, message.model_key, ask, timeout_s)


async def _stream(
    locator: Locator,
    model_id: str,
    ask: Callable[[ModelServerConnection, float | None], AsyncGenerator[Item, None]],
    timeout_s: float | None = None,
    route: Route = ANY_ROUTE,
    affinity: Affinity = ANYWHERE,
) -> AsyncGenerator[Item, None]:
    """Yield from `ask` on a ready replica; retry on another if it fails before yielding.

    Saxml's streams, which say nothing that another replica could go on from.
    """

    async def begin(
        replica: ModelServerConnection, left_s: float | None
    ) -> tuple[list[Item], AsyncGenerator[Item, None]]:
        items = ask(replica, left_s)
        async for item in items:
            return [item], items
        return [], items

    first, rest = await locator.call(model_id, begin, timeout_s, route, affinity=affinity)
    async with aclosing(rest):
        for item in first:
            yield item
        async for item in rest:
            yield item


class AsyncClient(OperatorCalls, HistoryCalls, WeightCalls, RequestCalls):
    """Client of one cell. Create, use and close it in one event loop."""

    def __init__(
        self, admin: str | None = None, *, patience: RetryLimits | None = None, preferred: str = ""
    ) -> None:
        """`admin` is host:port of the cell's admin server; None finds it (`sax.client.location`).
        `preferred` is the host:port of a model server to use first while it is ready."""
        self._admin = Admin(admin)
        self._locator = Locator(self._admin, self._explain, patience, preferred)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client; requests in progress fail with Cancelled."""
        await self._locator.close()
        await self._admin.close()
