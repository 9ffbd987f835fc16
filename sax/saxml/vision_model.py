"""Saxml's vision methods: `sax.Model(id).VM().Classify(image_bytes)`.

Images, and texts that come with them, are bytes in results, as in Saxml. Servers here have models
for Classify and Embed; the others they answer with UnsupportedParameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sax.proto import vision_pb2
from sax.saxml.model_handle import Media, ModelHandle, as_bytes
from sax.saxml.options import ModelOptions
from sax.wire import services

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
        request = vision_pb2.TextToImageRequest(text=text)
        return _images(self._handle.ask(services.TEXT_TO_IMAGE, request, options).images)

    def TextAndImageToImage(
        self, text: str, image_bytes: Media, options: ModelOptions | None = None
    ) -> Scored:
        request = vision_pb2.TextAndImageToImageRequest(
            text=text, image_bytes=as_bytes(image_bytes)
        )
        return _images(self._handle.ask(services.TEXT_AND_IMAGE_TO_IMAGE, request, options).images)

    def ImageToImage(self, text: Media, options: ModelOptions | None = None) -> Scored:
        """Turn an image into others. Its argument is called `text` in Saxml."""
        request = vision_pb2.ImageToImageRequest(image_bytes=as_bytes(text))
        return _images(self._handle.ask(services.IMAGE_TO_IMAGE, request, options).images)

    def Embed(self, image: Media, options: ModelOptions | None = None) -> list[float]:
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
        request = vision_pb2.ImageToTextRequest(image_bytes=as_bytes(image_bytes), text=text)
        return _texts(self._handle.ask(services.IMAGE_TO_TEXT, request, options).texts)

    def VideoToText(
        self, image_frames: Sequence[Media], text: str = "", options: ModelOptions | None = None
    ) -> Scored:
        frames = map(as_bytes, image_frames)
        request = vision_pb2.VideoToTextRequest(image_frames=frames, text=text)
        return _texts(self._handle.ask(services.VIDEO_TO_TEXT, request, options).texts)

    def VideoToToken(
        self, image_frames: Sequence[Media], options: ModelOptions | None = None
    ) -> list[float]:
        request = vision_pb2.VideoToTokenRequest(image_frames=map(as_bytes, image_frames))
        return [*self._handle.ask(services.VIDEO_TO_TOKEN, request, options).tokens]

    def TokenToVideo(
        self, tokens: Sequence[float], options: ModelOptions | None = None
    ) -> list[bytes]:
        request = vision_pb2.TokenToVideoRequest(tokens=tokens)
        return [*self._handle.ask(services.TOKEN_TO_VIDEO, request, options).image_frames]


def _images(images: Iterable[vision_pb2.ImageGenerations]) -> Scored:
    return [(each.image, each.score) for each in images]


def _texts(texts: Iterable[vision_pb2.DecodedText]) -> Scored:
    return [(each.text.encode(), each.score) for each in texts]


def _found(box: vision_pb2.BoundingBox) -> Found:
    mask = box.mask.mask_height, box.mask.mask_width, box.mask.mask_values
    return box.cx, box.cy, box.w, box.h, box.text.encode(), box.score, mask
