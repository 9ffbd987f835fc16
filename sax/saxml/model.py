"""Saxml's Model: the way from a published model to its methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sax.client import Client
from sax.client.attempts import ANY_ROUTE, Route
from sax.names import ModelId
from sax.proto import audio_pb2, common_pb2, lm_pb2, multimodal_pb2, vision_pb2
from sax.saxml.options import ModelOptions, Options, client_of
from sax.status import Status, StatusNotOk
from sax.wire import services
from sax.wire.services import Reply, RpcMethod

Media = bytes | str  # Saxml takes either for an image or a sound; a text is sent as UTF-8


@dataclass(frozen=True)
class ModelHandle:
    """A model's name, the route of its requests, and its cell's client, looked up at each call
    because an admin server may move."""

    model_id: str
    route: Route = field(default=ANY_ROUTE)
    find_client: Callable[[str], Client] = client_of

    @property
    def client(self) -> Client:
        return self.find_client(self.model_id)

    def ask(self, method: RpcMethod[Reply], request: Any, options: ModelOptions | None) -> Reply:
        """Send a request of any data service, with its model and extra inputs filled in."""
        request.model_key = self.model_id
        request.extra_inputs.CopyFrom(_extra(options))
        timeout_s = options.timeout_s if options is not None else None
        return self.client.ask_service(self.model_id, method, request, timeout_s, route=self.route)


def as_bytes(media: Media) -> bytes:
    return media.encode() if isinstance(media, str) else media


def _extra(options: ModelOptions | None) -> common_pb2.ExtraInputs:
    return common_pb2.ExtraInputs() if options is None else options.ToProto()


class Model:
    """A published model."""

    def __init__(self, id: str, options: Options | None = None) -> None:
        self._handle = ModelHandle(str(ModelId.parse(id)), (options or Options()).route())

    def LM(self) -> LanguageModel:
        """Return its text methods."""
        return LanguageModel(self._handle)

    def VM(self) -> VisionModel:
        """Return its vision methods."""
        return VisionModel(self._handle)

    def AM(self) -> AudioModel:
        """Return its audio methods."""
        return AudioModel(self._handle)

    def MM(self) -> MultimodalModel:
        """Return its multimodal methods."""
        return MultimodalModel(self._handle)

    def CM(self) -> CustomModel:
        """Return its custom methods."""
        return CustomModel(self._handle)


# Saxml's audio method: `sax.Model(id).AM().Recognize(audio_bytes)`.
#
# Models of sounds give one guess; transcripts with times are `sax.client.Client.transcribe`.


class AudioModel:
    """Audio methods of one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def Recognize(
        self, audio_bytes: Media, options: ModelOptions | None = None
    ) -> list[tuple[str, float]]:
        """Return what a sound may say: (text, score) of each guess."""
        request = audio_pb2.AsrRequest(audio_bytes=as_bytes(audio_bytes))
        reply = self._handle.ask(services.RECOGNIZE, request, options)
        return [(guess.text, guess.score) for guess in reply.hyps]


class CustomModel:
    """Custom methods of one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def Custom(
        self, request: bytes, method_name: str, options: ModelOptions | None = None
    ) -> bytes:
        """Call a method of a custom model."""
        handle, options = self._handle, options or ModelOptions()
        extra, timeout_s = options.extra_inputs, options.timeout_s
        return handle.client.custom(
            handle.model_id, request, method_name, extra, timeout_s, route=handle.route
        )

    def CustomNoException(
        self, request: bytes, method_name: str, options: ModelOptions | None = None
    ) -> bytes | Status:
        """Return the answer, or the status of the error that `Custom` would raise."""
        try:
            return self.Custom(request, method_name, options)
        except StatusNotOk as error:
            return error.status


# Saxml's multimodal methods, on its own messages (`sax.proto.multimodal_pb2`).
#
# Models that take images generate and score; Embed is refused with UnsupportedParameter.


class MultimodalModel:
    """Multimodal methods of one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def Generate(
        self, request: multimodal_pb2.GenerateRequest, options: ModelOptions | None = None
    ) -> multimodal_pb2.GenerateResponse:
        """Answer texts and images."""
        wrapped = multimodal_pb2.GenerateRpcRequest(request=request)
        return self._handle.ask(services.MM_GENERATE, wrapped, options).response

    def Score(
        self, request: multimodal_pb2.ScoreRequest, options: ModelOptions | None = None
    ) -> multimodal_pb2.ScoreResponse:
        """Score suffixes after texts and images."""
        wrapped = multimodal_pb2.ScoreRpcRequest(request=request)
        return self._handle.ask(services.MM_SCORE, wrapped, options).response

    def Embed(
        self, request: multimodal_pb2.EmbedRequest, options: ModelOptions | None = None
    ) -> multimodal_pb2.EmbedResponse:
        """Embed texts and images; no model here does."""
        wrapped = multimodal_pb2.EmbedRpcRequest(request=request)
        return self._handle.ask(services.MM_EMBED, wrapped, options).response


StreamItem = tuple[str, int, list[float]]
StreamCallback = Callable[[bool, list[StreamItem]], None]


class LanguageModel:
    """Text methods of one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def Generate(self, text: str, options: ModelOptions | None = None) -> list[tuple[str, float]]:
        """Return (text, score) of each sample, best first."""
        handle, options = self._handle, options or ModelOptions()
        return handle.client.saxml_generate(
            handle.model_id, text, options.extra_inputs, options.timeout_s, route=handle.route
        )

    def GenerateStream(
        self, text: str, callback: StreamCallback, options: ModelOptions | None = None
    ) -> None:
        """Call back with (False, items) for each message and (True, []) at the end.

        An item is (text, prefix_len, scores): truncate the text so far to prefix_len characters,
        then append text.
        """
        handle, options = self._handle, options or ModelOptions()
        messages = handle.client.saxml_generate_stream(
            handle.model_id, text, options.extra_inputs, options.timeout_s, route=handle.route
        )
        for message in messages:
            callback(False, [_stream_item(item) for item in message.items])
        callback(True, [])

    def Score(
        self, prefix: str, suffix: Sequence[str], options: ModelOptions | None = None
    ) -> list[float]:
        """Return the log-probability of each suffix after the prefix."""
        handle, options = self._handle, options or ModelOptions()
        extra, timeout_s = options.extra_inputs, options.timeout_s
        return handle.client.score(
            handle.model_id, prefix, suffix, extra, timeout_s, route=handle.route
        )

    def Embed(self, text: str, options: ModelOptions | None = None) -> list[float]:
        """Return the vector of a text."""
        handle, options = self._handle, options or ModelOptions()
        return handle.client.saxml_embed(
            handle.model_id, text, options.extra_inputs, options.timeout_s, route=handle.route
        )

    def Gradient(
        self, prefix: str, suffix: str, options: ModelOptions | None = None
    ) -> tuple[list[float], dict[str, list[float]]]:
        """Return the scores and the gradients, each flattened, by the names of their tensors."""
        handle, options = self._handle, options or ModelOptions()
        extra, timeout_s = options.extra_inputs, options.timeout_s
        found = handle.client.gradient(
            handle.model_id, prefix, suffix, extra, timeout_s, route=handle.route
        )
        return found.score, dict(found.gradients)


def _stream_item(item: lm_pb2.GenerateStreamItem) -> StreamItem:
    return item.text, item.prefix_len, [*item.scores]


# Saxml's vision methods: `sax.Model(id).VM().Classify(image_bytes)`.
#
# Images, and texts that come with them, are bytes in results, as in Saxml. Servers here have
# models for Classify and Embed; the others they answer with UnsupportedParameter.

Box = tuple[float, float, float, float]  # centre x and y, width, height
Mask = tuple[int, int, bytes]  # height, width, a byte per pixel
Found = tuple[float, float, float, float, bytes, float, Mask]  # a box, its text and score
Scored = list[tuple[bytes, float]]


class VisionModel:
    """Vision methods of one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle

    def Classify(
        self, image_bytes: Media, options: ModelOptions | None = None
    ) -> list[tuple[str, float]]:
        """Return (label, score) of each class."""
        request = vision_pb2.ClassifyRequest(image_bytes=as_bytes(image_bytes))
        reply = self._handle.ask(services.CLASSIFY, request, options)
        return [(label.text, label.score) for label in reply.texts]

    def TextToImage(self, text: str, options: ModelOptions | None = None) -> Scored:
        """Draw images of a text; no model here does."""
        request = vision_pb2.TextToImageRequest(text=text)
        return _images(self._handle.ask(services.TEXT_TO_IMAGE, request, options).images)

    def TextAndImageToImage(
        self, text: str, image_bytes: Media, options: ModelOptions | None = None
    ) -> Scored:
        """Draw images of a text and an image; no model here does."""
        request = vision_pb2.TextAndImageToImageRequest(
            text=text, image_bytes=as_bytes(image_bytes)
        )
        return _images(self._handle.ask(services.TEXT_AND_IMAGE_TO_IMAGE, request, options).images)

    def ImageToImage(self, text: Media, options: ModelOptions | None = None) -> Scored:
        """Turn an image into others. Its argument is called `text` in Saxml."""
        request = vision_pb2.ImageToImageRequest(image_bytes=as_bytes(text))
        return _images(self._handle.ask(services.IMAGE_TO_IMAGE, request, options).images)

    def Embed(self, image: Media, options: ModelOptions | None = None) -> list[float]:
        """Return the vector of an image."""
        request = vision_pb2.EmbedRequest(image_bytes=as_bytes(image))
        return [*self._handle.ask(services.EMBED_IMAGE, request, options).embedding]

    def Detect(
        self,
        image_bytes: Media,
        text: Sequence[str] = (),
        boxes: Sequence[Box] = (),
        options: ModelOptions | None = None,
    ) -> list[Found]:
        """Find objects: of the texts, in the boxes, or any."""
        request = vision_pb2.DetectRequest(
            image_bytes=as_bytes(image_bytes),
            text=text,
            boxes_of_interest=[
                vision_pb2.BoundingBox(cx=cx, cy=cy, w=w, h=h) for cx, cy, w, h in boxes
            ],
        )
        reply = self._handle.ask(services.DETECT, request, options)
        return [_found(box) for box in reply.bounding_boxes]

    def ImageToText(
        self, image_bytes: Media, text: str = "", options: ModelOptions | None = None
    ) -> Scored:
        """Describe an image; no model here does."""
        request = vision_pb2.ImageToTextRequest(image_bytes=as_bytes(image_bytes), text=text)
        return _texts(self._handle.ask(services.IMAGE_TO_TEXT, request, options).texts)

    def VideoToText(
        self, image_frames: Sequence[Media], text: str = "", options: ModelOptions | None = None
    ) -> Scored:
        """Describe a video; no model here does."""
        frames = map(as_bytes, image_frames)
        request = vision_pb2.VideoToTextRequest(image_frames=frames, text=text)
        return _texts(self._handle.ask(services.VIDEO_TO_TEXT, request, options).texts)

    def VideoToToken(
        self, image_frames: Sequence[Media], options: ModelOptions | None = None
    ) -> list[float]:
        """Encode a video as tokens; no model here does."""
        request = vision_pb2.VideoToTokenRequest(image_frames=map(as_bytes, image_frames))
        return [*self._handle.ask(services.VIDEO_TO_TOKEN, request, options).tokens]

    def TokenToVideo(
        self, tokens: Sequence[float], options: ModelOptions | None = None
    ) -> list[bytes]:
        """Decode the images of a video; no model here does."""
        request = vision_pb2.TokenToVideoRequest(tokens=tokens)
        return [*self._handle.ask(services.TOKEN_TO_VIDEO, request, options).image_frames]


def _images(images: Iterable[vision_pb2.ImageGenerations]) -> Scored:
    return [(each.image, each.score) for each in images]


def _texts(texts: Iterable[vision_pb2.DecodedText]) -> Scored:
    return [(each.text.encode(), each.score) for each in texts]


def _found(box: vision_pb2.BoundingBox) -> Found:
    mask = box.mask.mask_height, box.mask.mask_width, box.mask.mask_values
    return box.cx, box.cy, box.w, box.h, box.text.encode(), box.score, mask
