"""A cell on one port for the command line's tests: an admin that believes what it is told, and a
model that answers with the words of the prompt in capitals, one chunk per word.

"say hello" -> "SAY", " HELLO". The vector of a text is [its length]; a custom request is answered
with the method and its own bytes reversed. The score of a suffix is minus the product of the
lengths of prefix and suffix. A question for the model "full" is refused with
QueueFull.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio

from sax.chat import Image
from sax.errors import ModelExists, ModelNotFound, QueueFull
from sax.flags.last_lines import LogLine
from sax.names import nearest
from sax.passes import ChatInput, Embedded, EmbedInput, PairScores
from sax.proto import (
    admin_pb2,
    admin_pb2_grpc,
    cell_pb2,
    cell_pb2_grpc,
    control_pb2,
    custom_pb2,
    custom_pb2_grpc,
    lm_pb2,
    lm_pb2_grpc,
    tokens_pb2,
    tokens_pb2_grpc,
)
from sax.types import (
    Canary,
    Event,
    GenerateRequest,
    JoinedServer,
    ModelSpec,
    PublishedModel,
    ReplicaStatus,
    ServableInfo,
    ServableStatus,
    ServerInfo,
    TokenChunk,
    Version,
)
from sax.weights import WeightChange
from sax.wire.embed import decode_embed, decode_pairs, encode_embedded, encode_pair_scores
from sax.wire.interceptor import ErrorInterceptor
from sax.wire.models import decode_spec, encode_published
from sax.wire.records import encode_event, encode_log, encode_version
from sax.wire.rpc import server_options
from sax.wire.servers import encode_joined
from sax.wire.tokens import decode_generate, encode_chunk, encode_failure
from sax.wire.weights import decode_weights


class FakeCell(
    admin_pb2_grpc.AdminServicer,
    cell_pb2_grpc.CellServicer,
    lm_pb2_grpc.LMServiceServicer,
    tokens_pb2_grpc.TokenServiceServicer,
    custom_pb2_grpc.CustomServiceServicer,
):
    """`models` is all its state; tests read and write it."""

    def __init__(self) -> None:
        self.models: dict[str, PublishedModel] = {}
        self.weight_changes: list[WeightChange] = []
        self.versions: dict[str, list[Version]] = {}  # the newest first
        self.events: list[Event] = []  # the oldest first
        self.logs: dict[str, list[LogLine]] = {"": []}  # by server, "": of the admin server
        self.asked: list[GenerateRequest] = []
        # What a new publication's replica is at first; more may follow, one per List.
        self.script: list[ReplicaStatus] = []
        self.stops_after: int | None = None  # words, after which an answer never goes on
        self.refuses = False  # every question
        self.finish_reason = "stop"  # of every answer
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> FakeCell:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(0), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=server_options())
        admin_pb2_grpc.add_AdminServicer_to_server(self, self._server)
        cell_pb2_grpc.add_CellServicer_to_server(self, self._server)
        lm_pb2_grpc.add_LMServiceServicer_to_server(self, self._server)
        tokens_pb2_grpc.add_TokenServiceServicer_to_server(self, self._server)
        custom_pb2_grpc.add_CustomServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    @property
    def ready(self) -> ReplicaStatus:
        return ReplicaStatus(self.address, ServableStatus.LOADED)

    def holds(self, model_id: str, *replicas: ReplicaStatus) -> None:
        """Publish without a client."""
        spec = ModelSpec(model_id=model_id, model_path="llama", checkpoint="/c", replicas=1)
        self.models[model_id] = PublishedModel(spec, replicas or (self.ready,), ("lm.generate",))

    # --- the admin ---

    async def Publish(self, request: admin_pb2.PublishRequest, context: Any) -> Any:
        spec = decode_spec(request.model)
        if spec.model_id in self.models:
            raise ModelExists(f"{spec.model_id} is published already; use update")
        self.models[spec.model_id] = PublishedModel(spec, (self.ready,) * spec.replicas)
        return admin_pb2.PublishResponse()

    async def Update(self, request: admin_pb2.UpdateRequest, context: Any) -> Any:
        spec = decode_spec(request.model)
        self._find(spec.model_id)
        self.models[spec.model_id] = PublishedModel(spec, (self.ready,) * spec.replicas)
        return admin_pb2.UpdateResponse()

    async def Unpublish(self, request: admin_pb2.UnpublishRequest, context: Any) -> Any:
        self._find(request.model_id)
        del self.models[request.model_id]
        return admin_pb2.UnpublishResponse()

    async def List(self, request: admin_pb2.ListRequest, context: Any) -> Any:
        if request.model_id.count("/") == 3:
            listed = [self._find(request.model_id)]
            if self.script:
                listed = [replace(listed[0], replicas=(self.script.pop(0),))]
                self.models[request.model_id] = listed[0]
        else:
            listed = list(self.models.values())
        return admin_pb2.ListResponse(
            published_models=map(encode_published, listed),
            servers=[encode_joined(self._joined())],
        )

    async def WatchLoc(self, request: admin_pb2.WatchLocRequest, context: Any) -> Any:
        published = self._find(request.model_id)
        if request.seqno:
            await asyncio.Event().wait()  # there is no news
        addresses = [r.address for r in published.replicas if r.status is ServableStatus.LOADED]
        result = admin_pb2.WatchResult(next_seqno=1, has_fullset=True, values=addresses)
        return admin_pb2.WatchLocResponse(admin_server_id="fake", result=result)

    async def Canary(self, request: cell_pb2.CanaryRequest, context: Any) -> Any:
        published = self._find(request.model_id)
        canary = Canary(
            version="c" * 32,
            checkpoint=request.checkpoint_path,
            overrides=dict(request.overrides),
            percent=request.percent,
        )
        replicas = (self.ready, replace(self.ready, canary=True))
        spec = replace(published.spec, replicas=2, canary=canary)
        self.models[request.model_id] = PublishedModel(spec, replicas, wanted=2)
        return cell_pb2.CanaryResponse(uuid=bytes.fromhex(canary.version))

    async def Promote(self, request: cell_pb2.PromoteRequest, context: Any) -> Any:
        return cell_pb2.PromoteResponse(uuid=self._end_canary(request.model_id))

    async def Abort(self, request: cell_pb2.AbortRequest, context: Any) -> Any:
        return cell_pb2.AbortResponse(uuid=self._end_canary(request.model_id))

    async def Weights(self, request: control_pb2.WeightsRequest, context: Any) -> Any:
        self._find(request.model_id)
        self.weight_changes.append(decode_weights(request))
        replica = control_pb2.ReplicaWeights(address="10.0.0.1:1", version="7", state="serving")
        return cell_pb2.WeightsResponse(replicas=[replica])

    def _end_canary(self, model_id: str) -> bytes:
        published = self._find(model_id)
        self.models[model_id] = replace(published, spec=replace(published.spec, canary=None))
        return bytes(16)

    async def Rollback(self, request: cell_pb2.RollbackRequest, context: Any) -> Any:
        self._find(request.model_id)
        older = self.versions[request.model_id][1].version
        return cell_pb2.RollbackResponse(uuid=request.uuid or bytes.fromhex(older))

    async def Versions(self, request: cell_pb2.VersionsRequest, context: Any) -> Any:
        kept = self.versions[request.model_id]
        return cell_pb2.VersionsResponse(versions=map(encode_version, kept))

    async def Events(self, request: cell_pb2.EventsRequest, context: Any) -> Any:
        before = request.before or 2**62
        told = [event for event in reversed(self.events) if event.sequence < before]
        page = told[: request.limit or 100]
        return cell_pb2.EventsResponse(events=map(encode_event, page))

    async def Log(self, request: control_pb2.LogRequest, context: Any) -> Any:
        return encode_log(self.logs.get(request.server, []))

    def _find(self, model_id: str) -> PublishedModel:
        if model_id not in self.models:
            near = ", ".join(nearest(model_id, self.models))
            raise ModelNotFound(f"{model_id} is not published; the nearest names are: {near}")
        return self.models[model_id]

    def _joined(self) -> JoinedServer:
        info = ServerInfo(
            address=self.address,
            debug_address="10.0.0.7:10003",
            model_paths=("llama",),
            memory_total=4 << 30,
        )
        servables = tuple(
            ServableInfo(model_id=name, status=ServableStatus.LOADED, kernels="avx2, 2 threads")
            for name in self.models
        )
        return JoinedServer(info, 0.0, servables, 1 << 30)

    # --- the model ---

    async def Stream(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for message in request_iterator:
            if message.WhichOneof("kind") == "generate":
                yield tokens_pb2.FromServer(chunks=self._answer(message.generate))

    async def Embed(self, request: tokens_pb2.EmbedRequest, context: Any) -> Any:
        _, inputs, _, _ = decode_embed(request)
        return encode_embedded(Embedded([[float(_size(each))] for each in inputs], 0))

    async def ScorePairs(self, request: tokens_pb2.ScorePairsRequest, context: Any) -> Any:
        _, [query], documents = decode_pairs(request)
        scores = [float(_size(query) * _size(each)) for each in documents]
        return encode_pair_scores(PairScores(scores, 0))

    async def Score(self, request: lm_pb2.ScoreRequest, context: Any) -> Any:
        size = len(request.prefix)
        return lm_pb2.ScoreResponse(logp=[-float(size * len(each)) for each in request.suffix])

    async def Custom(self, request: custom_pb2.CustomRequest, context: Any) -> Any:
        answer = request.method_name.encode() + b":" + request.request[::-1]
        return custom_pb2.CustomResponse(response=answer)

    def _answer(self, message: tokens_pb2.Generate) -> list[tokens_pb2.Chunk]:
        request = decode_generate(message)
        self.asked.append(request)
        if self.refuses or request.model_id.endswith("/full"):
            error = QueueFull("the queue is full (1 waiting)", retry_after_s=1)
            return [encode_failure(message.id, error)]
        prompt = request.prompt
        text = prompt if isinstance(prompt, str) else " ".join(getattr(prompt[-1], "texts", ()))
        words = text.upper().split()
        return [
            encode_chunk(
                message.id,
                TokenChunk(
                    word if number == 1 else f" {word}",
                    (number,),
                    finish_reason=self.finish_reason if number == len(words) else None,
                    completion_tokens=number,
                ),
            )
            for number, word in enumerate(words[: self.stops_after], 1)
        ]


def _size(given: EmbedInput) -> int:
    """Characters or tokens of an input, or bytes of the images that it is."""
    if isinstance(given, ChatInput):
        return sum(len(image.data) for each in given.messages for image in each.images)
    assert not isinstance(given, Image), "images come in chats"
    return len(given)
