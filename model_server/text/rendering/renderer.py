"""Renders chat templates in processes of their own, so that no template can hold up the server."""

from __future__ import annotations

from concurrent.futures import Future
from functools import cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from model_server.sharing.confined.lanes import LaneKind, Lanes
from model_server.sharing.confined.process import ConfinedProcess
from model_server.text.rendering.frames import MAX_ANSWER, Answer, Ask, TemplateParts, framed
from sax.errors import InvalidRequest, Unavailable

_DECODER = msgspec.msgpack.Decoder(Answer)
_WORKER = "model_server.text.rendering.worker"


class RenderProcess(ConfinedProcess):
    """The server's end of a process that renders chat templates."""

    def __init__(self, seconds: float, niceness: int = 0) -> None:
        """`seconds`: processor time for one request."""
        super().__init__(_WORKER, seconds, niceness, doing="renders it", most=MAX_ANSWER)

    def answer(self, ask: Ask) -> Answer:
        """Raises ProcessEnded, OSError, or UnicodeEncodeError for text with lone surrogates."""
        return self.exchange(framed(ask), _DECODER.decode)


QUICK_S = 0.2  # processor time of a chat in the quick lane
SLOW_S = 1.0  # and in the slow one
_WAIT_S = 3.0


class _Chat(NamedTuple):
    ask: Ask
    parts: TemplateParts


class _TemplateProcess:
    """Tells the process of a template when it does not know it."""

    def __init__(self, seconds: float, niceness: int) -> None:
        self._process = RenderProcess(seconds, niceness)
        self.start = self._process.start
        self.stop = self._process.stop

    def answer(self, chat: _Chat) -> Answer:
        try:
            answer = self._process.answer(chat.ask)
            if answer.kind == "unknown":
                answer = self._process.answer(replace(chat.ask, parts=chat.parts))
        except UnicodeEncodeError as exc:
            raise InvalidRequest(f"the chat is not Unicode text: {exc}", param="messages") from exc
        return answer


class Renderer:
    """Thread-safe. Its processes start with the first chat and end with this one."""

    def __init__(self) -> None:
        self._lanes = Lanes(
            LaneKind[_Chat, Answer](
                name="chat templates",
                doing="to render",
                process=_TemplateProcess,
                quick_s=QUICK_S,
                slow_s=SLOW_S,
                wait_s=_WAIT_S,
                refused=_refused,
                ended=lambda how: Answer("runaway", how),
                spent=lambda answer: answer.kind == "runaway",
            )
        )

    def submit(self, ask: Ask, parts: TemplateParts) -> Future[Answer]:
        """Render a chat. The future raises Unavailable or InvalidRequest."""
        return self._lanes.submit(ask.key, _Chat(ask, parts))

    def try_out(self, ask: Ask, parts: TemplateParts) -> Answer:
        """Render with a template that nobody knows yet, away from the chats. Blocks."""
        return self._lanes.try_out(ask.key, _Chat(ask, parts))


def _refused(why: str, retry_after_s: float) -> Unavailable:
    # Not QueueFull: the caller would send it to another replica, with the same template.
    return Unavailable(why, retry_after_s=retry_after_s)


@cache
def renderer() -> Renderer:
    """Return the renderer of this process."""
    return Renderer()
