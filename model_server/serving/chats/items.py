"""Items of Saxml's MultimodalService as a user's message. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sax.chat import Image, Message
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.proto import multimodal_pb2


def message_of(items: Sequence[multimodal_pb2.DataItem], at: str) -> tuple[Message, ...]:
    """Return texts and images, in their order, as one message. Raises InvalidRequest naming the
    item, as in items[2].video."""
    if not items:
        raise InvalidRequest(f"{at} is empty: send text and image_bytes", param=at)
    parts = tuple(_part(item, f"{at}[{n}]") for n, item in enumerate(items))
    texts = [part for part in parts if isinstance(part, str)]
    return (Message("user", "\n".join(texts) if len(texts) == len(parts) else parts),)


def text_of(items: Sequence[multimodal_pb2.DataItem], at: str) -> str:
    """Return texts as one. Raises InvalidRequest for other items."""
    parts = [_part(item, f"{at}[{n}]") for n, item in enumerate(items)]
    for n, part in enumerate(parts):
        if isinstance(part, Image):
            raise UnsupportedParameter(
                f"{at}[{n}] is an image, and only texts are scored: send it in prefix_items",
                param=f"{at}[{n}]",
            )
    return "".join(part for part in parts if isinstance(part, str))


def _part(item: multimodal_pb2.DataItem, at: str) -> str | Image:
    match item.WhichOneof("item"):
        case "text":
            return item.text
        case "image_bytes":
            return Image(item.image_bytes, f"{at}.image_bytes")
        case None:
            raise InvalidRequest(f"{at} is empty: send text or image_bytes", param=at)
        case kind:
            raise UnsupportedParameter(
                f"{at}.{kind} is not supported: send text and image_bytes", param=f"{at}.{kind}"
            )
