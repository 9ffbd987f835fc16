"""Replaces the images and sounds that a chat links to by their files, within a request's bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

from http_gateway.images.image_fetcher import ImageFetcher
from http_gateway.images.image_link import ImageLink, decoded
from sax.chat import Image, Message, Sound
from sax.fields.table import IMAGE_BYTES
from sax.wire.request_bounds import check_image_size, check_images

_INLINE = 256 << 10  # characters of a data URL, decoded in well under a millisecond


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
        kind = "sound" if isinstance(image, Sound) else "image"
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
