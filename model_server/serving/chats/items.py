"""Items of Saxml's MultimodalService as a user's message. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from model_server.sharing.audio.process import RATE
from sax.chat import Image, Message, Sound
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.proto import multimodal_pb2

_FLOATS = 3  # WAV's number of the format


def message_of(items: Sequence[multimodal_pb2.DataItem], at: str) -> tuple[Message, ...]:
    """Return texts, images and sounds, in their order, as one message. Raises InvalidRequest naming
    the item, as in items[2].video."""
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
                f"{at}[{n}] is no text, and only texts are scored: send it in prefix_items",
                param=f"{at}[{n}]",
            )
    return "".join(part for part in parts if isinstance(part, str))


def _part(item: multimodal_pb2.DataItem, at: str) -> str | Image:
    match item.WhichOneof("item"):
        case "text":
            return item.text
        case "image_bytes":
            return Image(item.image_bytes, f"{at}.image_bytes")
        case "audio_float_samples":
            return Sound(_wave(item.audio_float_samples.sample), f"{at}.audio_float_samples")
        case None:
            raise InvalidRequest(f"{at} is empty: send text or image_bytes", param=at)
        case kind:
            raise UnsupportedParameter(
                f"{at}.{kind} is not supported: send text, image_bytes and audio_float_samples",
                param=f"{at}.{kind}",
            )


def _wave(samples: Sequence[float]) -> bytes:
    """Return samples at 16 kHz as a WAV file of 32-bit numbers."""
    data = np.asarray(samples, "<f4").tobytes()
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, _FLOATS, 1, RATE, 4 * RATE, 4, 32)
    body = head + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI4s", b"RIFF", 4 + len(body), b"WAVE") + body
