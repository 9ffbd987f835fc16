"""Forms of a message's content that a chat template takes: a text, or a list of parts.

Templates of models with image or audio input go through `message['content']` where it is a list;
some of them take nothing else, and others only texts. Which it is, is tried out with a text and an
image, and with a text and a sound. The content of a message that only calls tools is an empty text
for most, and for some none: that is tried out, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sax.call_form import CallForm
from sax.chat import Content, Image, Message, ToolCall

PROBE = "How far away is the Moon?"
PROBE_TEXT = Message("user", PROBE)
PROBE_IMAGE = Message("user", (PROBE, Image(b"")))
_CALLED = "measure_the_distance"
PROBE_CALL = (
    PROBE_TEXT,
    Message("assistant", "", tool_calls=(ToolCall("123456789", _CALLED, "{}"),)),
    Message("tool", "384400", name=_CALLED, tool_call_id="123456789"),
)
_Rendered = Callable[[tuple[Message, ...], "ContentForm"], str]


@dataclass(frozen=True, slots=True)
class ContentForm:
    """Forms of texts, and of contents with images or sounds."""

    image: str = ""  # stands for an image or a sound in a text
    lists_only: bool = False  # texts, too, come as lists of parts
    texts_only: bool = False  # images come as what stands for them, between the texts
    kind: str = "image"  # or "audio": of the parts that are no texts
    calls: CallForm | None = None  # how calls are written into the text; None: the template does
    # A message that only calls has an empty text, and not none; None: not tried out yet.
    empty_text: bool | None = None

    @property
    def without_text(self) -> str | None:
        """The content of a message that only calls tools."""
        return None if self.empty_text is False else ""

    def value(self, content: Content, guard: Callable[[str], str]) -> Any:
        if isinstance(content, str):
            return [_text(guard(content))] if self.lists_only else guard(content)
        if self.texts_only:
            parts = (guard(part) if isinstance(part, str) else self.image for part in content)
            return "\n".join(parts)
        # Some templates look for a part's type, and some for a key of that name.
        place = {"type": self.kind} | ({} if self.kind == "image" else {self.kind: ""})
        return [_text(guard(part)) if isinstance(part, str) else place for part in content]


TEXTS = ContentForm()


def tried_form(image: str, rendered: _Rendered) -> ContentForm:
    """Return the form that a template takes. rendered: its text for a chat in a form; "": it
    refuses that."""
    as_text = rendered((PROBE_TEXT,), ContentForm(image))
    for kind in ("image", "audio"):
        as_list = rendered((PROBE_IMAGE,), ContentForm(image, kind=kind))
        if PROBE in as_list and as_list.count(image) == 1 + as_text.count(image):
            return ContentForm(image, lists_only=PROBE not in as_text, kind=kind)
    return ContentForm(image, texts_only=True)


def tried_without_text(form: ContentForm, rendered: _Rendered) -> ContentForm:
    """Return the form with what a template takes as the content of a message that only calls: the
    call must be there, and no word for nothing."""
    for each in (replace(form, empty_text=True), replace(form, empty_text=False)):
        text = rendered(PROBE_CALL, each)
        if _CALLED in text and "None" not in text:
            return each
    return replace(form, empty_text=True)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
