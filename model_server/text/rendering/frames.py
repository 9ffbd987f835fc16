"""Messages between a server and the process that renders its chat templates."""

from __future__ import annotations

from typing import Literal

import msgspec

from model_server.sharing.confined import pipe
from sax.call_form import CallForm
from sax.chat import ChatOptions, Message

MAX_ANSWER = 1 << 27  # bytes


class TemplateParts(msgspec.Struct, frozen=True, array_like=True):
    """A template with all that is the same for every chat."""

    source: str
    bos_token: str
    eos_token: str
    control_tokens: tuple[str, ...]
    # Kind (image, video, audio) and what the template writes for one; (): the model takes texts
    media: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        """Characters, about."""
        return len(self.source) + sum(map(len, self.control_tokens))


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """Render one chat."""

    key: bytes  # names the template
    chat: tuple[Message, ...] | None  # None: only compile
    options: ChatOptions = ChatOptions()
    parts: TemplateParts | None = None  # for a process that does not know the template
    learn: bool = False  # answer with a WrittenForms, as JSON, in place of a chat


class WrittenForms(msgspec.Struct, frozen=True):
    """What a template was found to write."""

    calls: CallForm | None = None
    # Before and behind the reasoning of a turn.
    reasoning: tuple[str, str] | None = None
    system: bool = True  # it writes messages of the role system


class Answer(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["text", "unknown", "refused", "runaway", "broken"]
    text: str = ""  # the chat, or what the template does, as the end of a sentence


def framed(message: Ask | Answer) -> bytes:
    """Raises UnicodeEncodeError for text with lone surrogates."""
    return pipe.framed(msgspec.msgpack.encode(message))
