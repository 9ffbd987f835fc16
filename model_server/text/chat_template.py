"""Renders a chat with the Jinja template of a checkpoint.

Templates come with checkpoints, so they run in a process of their own, sandboxed and within limits
of time and memory (see `rendering`). User text cannot become a control token (see
`control_tokens`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from concurrent.futures import Future

import msgspec

from model_server.text.rendering.frames import Answer, Ask, TemplateParts
from model_server.text.rendering.renderer import renderer
from sax.errors import CheckpointError, InvalidRequest
from sax.types import Message

_SYSTEM = Message("system", "You answer in one sentence.")
_QUESTION = Message("user", "How far away is the Moon?")
_ANSWER = Message("assistant", "About 384,000 kilometres.")
# Conversations that every template is tried on, and if the model is to answer next.
_TRIALS: tuple[tuple[tuple[Message, ...], bool], ...] = (
    ((_SYSTEM, _QUESTION), True),
    ((_QUESTION, _ANSWER, _QUESTION), True),
    ((_QUESTION, _ANSWER), False),
)


class ChatTemplate:
    """A model's chat template. Rendering is thread-safe."""

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: Collection[str] = (),
    ) -> None:
        """Raises CheckpointError if the template does not compile."""
        self.source = source
        self._parts = TemplateParts(source, bos_token, eos_token, tuple(sorted(special_tokens)))
        self._key = _key(self._parts)
        self._accept(renderer().try_out(Ask(self._key, None), self._parts))

    def try_out(self) -> None:
        """Render three conversations. Raises CheckpointError if one exceeds a limit.

        A template may refuse them, as some refuse a system message.
        """
        for messages, add_generation_prompt in _TRIALS:
            ask = Ask(self._key, _pairs(messages), add_generation_prompt)
            self._accept(renderer().try_out(ask, self._parts))
        # The first chat then waits neither for a process nor for the compiler.
        renderer().submit(Ask(self._key, None), self._parts)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Return the chat as text. Blocks; on an event loop use `rendered`.

        Raises InvalidRequest if the template rejects the messages or exceeds a limit, Unavailable
        if too many chats of slow templates wait.

        Control tokens in user text come out marked, so that `encode_chat` of the same checkpoint's
        tokenizer treats them as text.
        """
        return _text(self._submit(messages, add_generation_prompt).result())

    async def rendered(self, messages: Sequence[Message]) -> str:
        """Return the chat as text, ready for an answer. Raises as `render` does."""
        return _text(await asyncio.wrap_future(self._submit(messages, True)))

    def _submit(self, messages: Sequence[Message], add_generation_prompt: bool) -> Future[Answer]:
        ask = Ask(self._key, _pairs(messages), add_generation_prompt)
        return renderer().submit(ask, self._parts)

    def _accept(self, answer: Answer) -> None:
        if answer.kind in ("broken", "runaway"):
            raise CheckpointError(f"the chat template {answer.text}")


def _key(parts: TemplateParts) -> bytes:
    try:
        return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()
    except UnicodeEncodeError as exc:
        raise CheckpointError(f"the chat template is not Unicode text: {exc}") from exc


def _pairs(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    return tuple((message.role, message.content) for message in messages)


def _text(answer: Answer) -> str:
    """Raises InvalidRequest if there is no text."""
    if answer.kind != "text":
        raise InvalidRequest(f"the model's chat template {answer.text}", param="messages")
    return answer.text
