"""The parts of a message whose content is a list: texts, images, sounds and videos of users,
refusals of assistants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, cast

from http_gateway.images.image_link import (
    ImageLink,
    SoundLink,
    VideoLink,
    check_detail,
    joined,
    read_sound,
    read_url,
)
from http_gateway.openai.tools import object_at
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import Content, Message
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

PARTS = ("text", "image_url", "input_audio", "video_url")  # of a message; others are of one role


def content_of(content: object, at: str, role: str) -> Content:
    """Return a text, or parts with their images. Raises InvalidRequest, UnsupportedParameter."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{at}: send text or a list of parts", param=at)
    parts = cast("list[object]", content)
    return joined([_read_part(part, f"{at}[{i}]", role) for i, part in enumerate(parts)])


def _read_part(part: object, at: str, role: str) -> str | ImageLink:
    if not isinstance(part, dict):
        raise InvalidRequest(f'{at}: send {{"type": "text", "text": ...}}', param=at)
    fields = dict(cast("Mapping[str, object]", part))
    kind = fields.pop("type", None)
    kinds = {"user": PARTS, "assistant": ("text", "refusal")}.get(role, PARTS[:1])
    if kind == "file":
        refuse_file(at, "a text part", "image_url")
    if kind not in kinds:
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported in a message of the role {role}: send "
            f"{' or '.join(kinds)} parts only",
            param=f"{at}.type",
        )
    readers = {
        "text": _text,
        "refusal": _refusal,
        "image_url": _image,
        "input_audio": _sound,
        "video_url": _video,
    }
    return readers[str(kind)](fields, at)


def refuse_file(at: str, text: str, image: str) -> NoReturn:
    """Raise UnsupportedParameter for the file of a document. text, image: what to send instead."""
    raise UnsupportedParameter(
        f"{at}.type: files of documents, such as PDF, are not read here: send their text as "
        f"{text}, or their pages as images ({image}), to a model that sees",
        param=f"{at}.type",
    )


def _image(fields: dict[str, object], at: str) -> ImageLink:
    image = object_at(fields.pop("image_url", None), f"{at}.image_url")
    refuse_unsupported(fields, {}, at=f"{at}.")
    url, detail = image.pop("url", None), image.pop("detail", None)
    refuse_unsupported(image, {}, at=f"{at}.image_url.")
    check_detail(detail, f"{at}.image_url.detail")
    row = field(RequestRoute.CHAT, "messages.content.image_url")
    return read_url(url, f"{at}.image_url.url", at, row)


def _sound(fields: dict[str, object], at: str) -> SoundLink:
    sound = object_at(fields.pop("input_audio", None), f"{at}.input_audio")
    refuse_unsupported(fields, {}, at=f"{at}.")
    data, form = sound.pop("data", None), sound.pop("format", None)
    refuse_unsupported(sound, {}, at=f"{at}.input_audio.")
    row = field(RequestRoute.CHAT, "messages.content.input_audio")
    return read_sound(data, form, f"{at}.input_audio", at, row)


def _video(fields: dict[str, object], at: str) -> ImageLink:
    video = object_at(fields.pop("video_url", None), f"{at}.video_url")
    refuse_unsupported(fields, {}, at=f"{at}.")
    url = video.pop("url", None)
    refuse_unsupported(video, {}, at=f"{at}.video_url.")
    row = field(RequestRoute.CHAT, "messages.content.video_url")
    return read_url(url, f"{at}.video_url.url", at, row, VideoLink)


def with_heard(
    messages: Sequence[Message], given: Mapping[str, object] | None
) -> tuple[Message, ...]:
    """Return messages whose videos are heard, if mm_processor_kwargs asks for it.

    Raises InvalidRequest, or UnsupportedParameter for what else processors take.
    """
    others = dict(given or {})
    heard = others.pop("use_audio_in_video", None)
    refuse_unsupported(others, {}, at="mm_processor_kwargs.")
    if not isinstance(heard, bool | None):
        at = "mm_processor_kwargs.use_audio_in_video"
        raise InvalidRequest(f"{at} is {quoted(heard)}: send true or false", param=at)
    return tuple(map(_heard, messages)) if heard else tuple(messages)


def _heard(message: Message) -> Message:
    if not message.images:
        return message
    parts = (replace(p, heard=True) if isinstance(p, VideoLink) else p for p in message.content)
    return replace(message, content=tuple(parts))


def _refusal(fields: dict[str, object], at: str) -> str:
    return _text(fields, at, "refusal")


def _text(fields: dict[str, object], at: str, name: str = "text") -> str:
    text = fields.pop(name, None)
    if not isinstance(text, str):
        raise InvalidRequest(f"{at}.{name}: send a string", param=f"{at}.{name}")
    field(RequestRoute.CHAT, "messages.content").check_text(text, f"{at}.{name}")
    refuse_unsupported(fields, {}, at=f"{at}.")
    return text
