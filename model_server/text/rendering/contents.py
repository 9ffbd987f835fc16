"""Forms of a message's content that a chat template takes: a text, or a list of parts.

Templates of models with image or audio input go through `message['content']` where it is a list;
some of them take nothing else, and others only texts. Which it is, is tried out with a text and an
image, and with a text and a sound. The content of a message that only calls tools is an empty text
for most, and for some none: that is tried out, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
class CallText:
    """Writes calls into the text of a message, for templates that take tools but no calls."""

    begin: str
    end: str
    python: bool = False  # name(key=value); else {"name": ..., "arguments": {...}}

    def text(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """calls: functions, each with its name and its arguments."""
        if not self.python:
            return self.begin + json.dumps(calls, ensure_ascii=False) + self.end
        return f"{self.begin}[{', '.join(map(_python_call, calls))}]{self.end}"


def call_text(source: str, control_tokens: Collection[str]) -> CallText | None:
    """Return how calls are written for a template; None: it does so itself."""
    if "tool_calls" in source:
        return None
    if "<|tool_call_start|>" in control_tokens:  # LFM2
        return CallText("<|tool_call_start|>", "<|tool_call_end|>", python=True)
    return CallText("<|tool_call|>" if "<|tool_call|>" in control_tokens else "", "")  # Granite 3


@dataclass(frozen=True, slots=True)
class ContentForm:
    """Forms of texts, and of contents with images or sounds."""

    image: str = ""  # stands for an image or a sound in a text
    lists_only: bool = False  # texts, too, come as lists of parts
    texts_only: bool = False  # images come as what stands for them, between the texts
    kind: str = "image"  # or "audio": of the parts that are no texts
    calls: CallText | None = None  # how calls are written into the text; None: the template does
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


def _python_call(call: Mapping[str, Any]) -> str:
    pairs = (
        f"{name}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)}"
        for name, value in call["arguments"].items()
    )
    return f"{call['name']}({', '.join(pairs)})"


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
