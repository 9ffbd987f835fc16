"""Forms of a message's content that a chat template takes: a text, or a list of parts.

Templates of models with image input go through `message['content']` where it is a list; some of
them take nothing else, and others only texts. Which it is, is tried out with a text and an image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sax.chat import Content, Image, Message

PROBE = "How far away is the Moon?"
PROBE_TEXT = Message("user", PROBE)
PROBE_IMAGE = Message("user", (PROBE, Image(b"")))


@dataclass(frozen=True, slots=True)
class ContentForm:
    """Forms of texts, and of contents with images."""

    image: str = ""  # stands for an image in a text
    lists_only: bool = False  # texts, too, come as lists of parts
    texts_only: bool = False  # images come as what stands for them, between the texts

    def value(self, content: Content, guard: Callable[[str], str]) -> Any:
        if isinstance(content, str):
            return [_text(guard(content))] if self.lists_only else guard(content)
        if self.texts_only:
            parts = (guard(part) if isinstance(part, str) else self.image for part in content)
            return "\n".join(parts)
        return [_text(guard(p)) if isinstance(p, str) else {"type": "image"} for p in content]


TEXTS = ContentForm()


def tried_form(image: str, rendered: Callable[[Message, ContentForm], str]) -> ContentForm:
    """Return the form that a template takes. rendered: its text for a message in a form; "": it
    refuses that."""
    as_text = rendered(PROBE_TEXT, ContentForm(image))
    as_list = rendered(PROBE_IMAGE, ContentForm(image))
    takes_lists = PROBE in as_list and as_list.count(image) == 1 + as_text.count(image)
    return ContentForm(
        image, lists_only=takes_lists and PROBE not in as_text, texts_only=not takes_lists
    )


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
