"""A server of Saxml's vision, audio and multimodal services that measures what it is sent.

Every text that it answers names a length, every score is that length negative; an embedding is
[length].
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc.aio

from sax.proto import (
    audio_pb2,
    audio_pb2_grpc,
    multimodal_pb2,
    multimodal_pb2_grpc,
    vision_pb2,
    vision_pb2_grpc,
)


class FakeVision(vision_pb2_grpc.VisionServiceServicer):
    """Keeps the last request."""

    def __init__(self) -> None:
        self.last: Any = None

    def _text(self, request: Any, size: int) -> vision_pb2.DecodedText:
        self.last = request
        return vision_pb2.DecodedText(text=f"{size} bytes", score=-size)

    async def Classify(self, request: Any, context: Any) -> Any:
        text = self._text(request, len(request.image_bytes))
        return vision_pb2.ClassifyResponse(texts=[text])

    async def TextToImage(self, request: Any, context: Any) -> Any:
        self.last = request
        images = [request.text.encode() * times for times in (1, 2)]
        return vision_pb2.TextToImageResponse(images=map(_scored, images))

    async def TextAndImageToImage(self, request: Any, context: Any) -> Any:
        image = request.text.encode() + request.image_bytes
        return vision_pb2.TextAndImageToImageResponse(images=[_scored(image)])

    async def ImageToImage(self, request: Any, context: Any) -> Any:
        image = request.image_bytes[::-1]
        return vision_pb2.ImageToImageResponse(images=[_scored(image)])

    async def Embed(self, request: Any, context: Any) -> Any:
        return vision_pb2.EmbedResponse(embedding=[len(request.image_bytes)])

    async def Detect(self, request: Any, context: Any) -> Any:
        self.last = request
        mask = vision_pb2.DetectionMask(mask_values=b"\1\0", mask_height=1, mask_width=2)
        boxes = [
            vision_pb2.BoundingBox(cx=0.5, cy=0.25, w=1, h=2, text=text, score=-at, mask=mask)
            for at, text in enumerate(request.text)
        ]
        return vision_pb2.DetectResponse(bounding_boxes=[*boxes, *request.boxes_of_interest])

    async def ImageToText(self, request: Any, context: Any) -> Any:
        text = self._text(request, len(request.image_bytes) + len(request.text))
        return vision_pb2.ImageToTextResponse(texts=[text])

    async def VideoToText(self, request: Any, context: Any) -> Any:
        text = self._text(request, sum(map(len, request.image_frames)))
        return vision_pb2.VideoToTextResponse(texts=[text])

    async def VideoToToken(self, request: Any, context: Any) -> Any:
        return vision_pb2.VideoToTokenResponse(tokens=map(len, request.image_frames))

    async def TokenToVideo(self, request: Any, context: Any) -> Any:
        frames = [bytes([int(token)]) for token in request.tokens]
        return vision_pb2.TokenToVideoResponse(image_frames=frames)


class FakeAudio(audio_pb2_grpc.AudioServiceServicer):
    async def Recognize(self, request: Any, context: Any) -> Any:
        size = len(request.audio_bytes)
        hypothesis = audio_pb2.AsrHypothesis(text=f"{size} bytes", score=-size)
        return audio_pb2.AsrResponse(hyps=[hypothesis])


class FakeMultimodal(multimodal_pb2_grpc.MultimodalServiceServicer):
    async def Generate(self, request: Any, context: Any) -> Any:
        items = request.request.items[::-1]
        result = multimodal_pb2.GenerateResult(items=items, score=-len(items))
        response = multimodal_pb2.GenerateResponse(results=[result])
        return multimodal_pb2.GenerateRpcResponse(response=response)

    async def Score(self, request: Any, context: Any) -> Any:
        asked = request.request
        score = len(asked.prefix_items) * 10 + len(asked.suffix_items)
        result = multimodal_pb2.ScoreResult(score=score)
        response = multimodal_pb2.ScoreResponse(results=[result])
        return multimodal_pb2.ScoreRpcResponse(response=response)

    async def Embed(self, request: Any, context: Any) -> Any:
        size = len(request.request.items)
        embedding = multimodal_pb2.DoubleEmbedding(values=[size])
        response = multimodal_pb2.EmbedResponse(embedding=embedding)
        return multimodal_pb2.EmbedRpcResponse(response=response)


class FakeMedia:
    """Runs the services on a loop of their own; `address` is where."""

    def __init__(self) -> None:
        self.vision = FakeVision()
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> FakeMedia:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(0), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = grpc.aio.server()
        add: Any = vision_pb2_grpc.add_VisionServiceServicer_to_server
        add(self.vision, self._server)
        add_audio: Any = audio_pb2_grpc.add_AudioServiceServicer_to_server
        add_audio(FakeAudio(), self._server)
        add_mixed: Any = multimodal_pb2_grpc.add_MultimodalServiceServicer_to_server
        add_mixed(FakeMultimodal(), self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()


def _scored(image: bytes) -> vision_pb2.ImageGenerations:
    return vision_pb2.ImageGenerations(image=image, score=-len(image))
