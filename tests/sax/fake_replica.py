"""A model server that counts: the answer to a prompt is the tokens 0, 1, 2 ... as text.

With max_tokens n the chunks are "0", "1" ... "n-1", the last with finish_reason "length", the first
with seed 7; one message carries the next chunk of every open request. Score gives -len(suffix);
Gradient has nine numbers for "many" and one for "few"; Generate gives the text reversed, which took
a token for each letter and two more; GenerateStream gives it letter by letter. The vector of an
input is [its length, 1/2]; Custom answers with the method and the bytes reversed. Save and Export
write nothing. The prompt "die" ends the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from msgspec.structs import replace

from sax.errors import SaxError
from sax.passes import Embedded
from sax.proto import (
    custom_pb2,
    custom_pb2_grpc,
    lm_pb2,
    lm_pb2_grpc,
    modelet_pb2,
    modelet_pb2_grpc,
    tokens_pb2,
    tokens_pb2_grpc,
)
from sax.types import GenerateRequest, TokenChunk
from sax.wire.embed import decode_embed, encode_embedded
from sax.wire.interceptor import ErrorInterceptor
from sax.wire.prompts import decode_detokenize, decode_tokenize
from sax.wire.rpc import server_options
from sax.wire.tokens import decode_generate, encode_chunk, encode_failure


class FakeReplica(
    tokens_pb2_grpc.TokenServiceServicer,
    lm_pb2_grpc.LMServiceServicer,
    custom_pb2_grpc.CustomServiceServicer,
    modelet_pb2_grpc.ModeletServicer,
):
    """Tests read and write its state."""

    def __init__(self) -> None:
        self.asked: list[GenerateRequest] = []
        self.cancelled: list[int] = []
        self.fail: list[SaxError] = []  # the answers to the next requests
        self.interrupt: SaxError | None = None  # ends every answer after its next token
        self.lm_calls: list[str] = []
        self.modelet_calls: list[Any] = []  # of Save and Export
        self.hold = asyncio.Event()  # clear: after its first token every answer waits
        self.hold.set()
        self.streams = 0  # how many were ever opened
        self.resumes = True  # False: a server older than answers that go on
        self.beats: bool = True  # False: a server older than beats
        self.silent: bool = False  # True: sends nothing more
        self.asked_to_beat: list[bool] = []
        self.extra: Any = None
        self.ending: asyncio.Task[None] | None = None
        self.address = ""
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> str:
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options())
        add_tokens: Any = tokens_pb2_grpc.add_TokenServiceServicer_to_server
        add_tokens(self, self._server)
        add_lm: Any = lm_pb2_grpc.add_LMServiceServicer_to_server
        add_lm(self, self._server)
        add_custom: Any = custom_pb2_grpc.add_CustomServiceServicer_to_server
        add_custom(self, self._server)
        add_modelet: Any = modelet_pb2_grpc.add_ModeletServicer_to_server
        add_modelet(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        await self._server.start()
        return self.address

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)

    async def Stream(
        self, request_iterator: AsyncIterator[tokens_pb2.ToServer], context: Any
    ) -> AsyncIterator[tokens_pb2.FromServer]:
        self.streams += 1
        # Number -> tokens had from elsewhere, tokens so far, tokens in all
        running: dict[int, tuple[int, int, int]] = {}
        news: asyncio.Queue[tokens_pb2.Chunk] = asyncio.Queue()

        async def listen() -> None:
            async for message in request_iterator:
                if message.WhichOneof("kind") == "beats":
                    self.asked_to_beat.append(message.beats)
                    continue
                if message.WhichOneof("kind") == "cancel":
                    running.pop(message.cancel.id, None)
                    self.cancelled.append(message.cancel.id)
                    continue
                request = decode_generate(message.generate)
                self.asked.append(request)
                if request.prompt == "die":
                    self.ending = asyncio.create_task(self.stop())
                    continue
                if self.fail:
                    news.put_nowait(encode_failure(message.generate.id, self.fail.pop(0)))
                else:
                    begun = request.answer if self.resumes else None
                    had = 0 if begun is None else len(begun.token_ids)
                    running[message.generate.id] = had, had, request.sampling.max_tokens or 1000

        listener = asyncio.create_task(listen())
        try:
            while True:
                await asyncio.sleep(0.001)
                if self.silent:
                    continue
                if self.beats and self.asked_to_beat[-1:] == [True]:
                    yield tokens_pb2.FromServer(beats=True)
                chunks = [news.get_nowait() for _ in range(news.qsize())]
                for number, (had, done, total) in list(running.items()):
                    if done > had and not self.hold.is_set():
                        continue
                    running[number] = (had, done + 1, total)
                    if done + 1 == total:
                        del running[number]
                    chunks.append(_count(number, done, total))
                    if self.interrupt is not None and running.pop(number, None):
                        chunks.append(encode_failure(number, self.interrupt))
                if chunks:
                    yield tokens_pb2.FromServer(chunks=chunks)
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def Phases(self, request: tokens_pb2.PhasesRequest, context: Any) -> Any:
        """Everything computes its answer; the second phase is of a later version."""
        names = request.request_ids
        phases = [
            tokens_pb2.RequestPhase(request_id=each, phase="decode" if n == 0 else "dreams")
            for n, each in enumerate(names)
        ]
        return tokens_pb2.PhasesResponse(requests=phases)

    async def Tokenize(self, request: tokens_pb2.TokenizeRequest, context: Any) -> Any:
        _, prompt, special, _ = decode_tokenize(request)
        text = prompt if isinstance(prompt, str) else "".join(turn.content for turn in prompt)
        text = f"^{text}" if special else text
        texts = [*text] if request.token_texts else []
        return tokens_pb2.TokenizeResponse(ids=map(ord, text), max_context=2048, token_texts=texts)

    async def Detokenize(self, request: tokens_pb2.DetokenizeRequest, context: Any) -> Any:
        _, ids = decode_detokenize(request)
        return tokens_pb2.DetokenizeResponse(text="".join(map(chr, ids)))

    async def Embed(self, request: Any, context: Any) -> Any:
        if getattr(request, "text", "") == "die":
            self.ending = asyncio.create_task(self.stop())  # which cancels this call
            await asyncio.sleep(60)
        if isinstance(request, lm_pb2.EmbedRequest):
            self._begin("Embed", request)
            return lm_pb2.EmbedResponse(embedding=[len(request.text), 0.5])
        if self.fail:
            raise self.fail.pop(0)
        _, inputs, _, _ = decode_embed(request)
        vectors = [[float(len(each)), 0.5] for each in inputs]
        return encode_embedded(Embedded(vectors, sum(map(len, inputs))))

    async def Custom(self, request: custom_pb2.CustomRequest, context: Any) -> Any:
        self._begin("Custom", request)
        answer = request.method_name.encode() + b":" + request.request[::-1]
        return custom_pb2.CustomResponse(response=answer)

    def _begin(self, method: str, request: Any) -> None:
        self.lm_calls.append(method)
        self.extra = request.extra_inputs
        if self.fail:
            raise self.fail.pop(0)

    async def Save(self, request: modelet_pb2.SaveRequest, context: Any) -> Any:
        self.modelet_calls.append(request)
        return modelet_pb2.SaveResponse()

    async def Export(self, request: modelet_pb2.ExportRequest, context: Any) -> Any:
        self.modelet_calls.append(request)
        return modelet_pb2.ExportResponse()

    async def Score(self, request: lm_pb2.ScoreRequest, context: Any) -> Any:
        self._begin("Score", request)
        return lm_pb2.ScoreResponse(logp=[-float(len(suffix)) for suffix in request.suffix])

    async def Gradient(self, request: lm_pb2.GradientRequest, context: Any) -> Any:
        self._begin("Gradient", request)
        tensors = {"many": range(9), "few": [0.5]}
        gradients = {
            name: lm_pb2.GradientResponse.Gradient(values=values)
            for name, values in tensors.items()
        }
        return lm_pb2.GradientResponse(score=[-len(request.suffix)], gradients=gradients)

    async def Generate(self, request: lm_pb2.GenerateRequest, context: Any) -> Any:
        self._begin("Generate", request)
        answer = lm_pb2.DecodedText(text=request.text[::-1], score=-1.5)
        counts = {"prompt_tokens": len(request.text), "completion_tokens": 2}
        return lm_pb2.GenerateResponse(texts=[answer], **counts)

    async def GenerateStream(
        self, request: lm_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[lm_pb2.GenerateStreamResponse]:
        self._begin("GenerateStream", request)
        for at, letter in enumerate(request.text):
            item = lm_pb2.GenerateStreamItem(text=letter, prefix_len=at, scores=[-float(at)])
            yield lm_pb2.GenerateStreamResponse(items=[item])
            await asyncio.sleep(0)
            await self.hold.wait()


def _count(number: int, done: int, total: int) -> tokens_pb2.Chunk:
    chunk = TokenChunk(str(done), (done,), (), None, 5, done + 1, -float(done))
    if done + 1 == total:
        chunk = replace(chunk, finish_reason="length")
    if not done:
        chunk = replace(chunk, seed=7, version="1")
    return encode_chunk(number, chunk)
