"""Renders chat templates in processes of their own, so that no template can hold up the server.

Two lanes, each a thread and a process that render one chat after the other. All chats go to the
quick lane. A chat that exceeds its limit is killed there and tried again in the slow lane, and for
a while all chats of its template go there at once. So a template that runs away delays the chats
of other models by the quick lane's limit and the start of a process, once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from queue import Empty, SimpleQueue

from msgspec.structs import replace

from model_server.sharing.confined.process import ProcessEnded
from model_server.text.rendering.frames import Answer, Ask, TemplateParts
from model_server.text.rendering.process import RenderProcess
from sax.errors import InvalidRequest, Unavailable

QUICK_S = 0.2  # processor time of a chat in the quick lane
SLOW_S = 1.0  # and in the slow one
_WAIT_S = 3.0  # a chat that waited longer in the slow lane is refused
_SLOW_FOR_S = 60.0  # how long a template stays in the slow lane after its last slow chat
_IDLE_S = 60.0  # after this the slow lane's process ends; its next chat starts another
_NICE = 5  # the slow lane computes when the engine leaves processor time
_MOST_MARKED = 1000  # templates remembered as slow


@dataclass(slots=True, eq=False)
class _WaitingChat:
    ask: Ask
    parts: TemplateParts
    patient: bool = False  # a load waits as long as it takes
    answer: Future[Answer] = field(default_factory=Future)
    since_s: float = field(default_factory=time.monotonic)
    begun: bool = False

    def begin(self) -> bool:
        """Return False if nobody waits for the answer any more."""
        self.begun = self.begun or self.answer.set_running_or_notify_cancel()
        return self.begun


class _SlowTemplates:
    """The templates with a slow chat lately, by key."""

    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}

    def add(self, key: bytes) -> None:
        if len(self._until_s) >= _MOST_MARKED:
            self._until_s.clear()
        self._until_s[key] = time.monotonic() + _SLOW_FOR_S

    def __contains__(self, key: bytes) -> bool:
        return self._until_s.get(key, 0.0) > time.monotonic()


class _Lane:
    def __init__(
        self,
        name: str,
        seconds: float,
        slow: _SlowTemplates,
        *,
        niceness: int = 0,
        pass_on: Callable[[_WaitingChat], None] | None = None,
        idle_s: float | None = None,
    ) -> None:
        """`pass_on` takes the chats of slow templates; None: they are done here."""
        self._name = name
        self._process = RenderProcess(seconds, niceness)
        self._slow = slow
        self._pass_on = pass_on
        self._idle_s = idle_s
        self._chats: SimpleQueue[_WaitingChat] = SimpleQueue()
        self._starting = threading.Lock()
        self._started = False

    def put(self, chat: _WaitingChat) -> None:
        self._chats.put(chat)
        with self._starting:
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                chat = self._chats.get(timeout=self._idle_s)
            except Empty:
                self._process.stop()
                chat = self._chats.get()
            self._take(chat)
            del chat  # keep no chat alive while waiting

    def _take(self, chat: _WaitingChat) -> None:
        if self._pass_on is not None and chat.ask.key in self._slow:
            self._pass_on(chat)
        elif chat.begin():
            try:
                self._do(chat)
            except Exception as exc:
                chat.answer.set_exception(exc)

    def _do(self, chat: _WaitingChat) -> None:
        waited_s = 0.0 if chat.patient or self._pass_on else time.monotonic() - chat.since_s
        if waited_s > _WAIT_S:
            # Not QueueFull: the caller would send it to another replica, with the same template.
            raise Unavailable(
                f"the chat waited {_WAIT_S:g} s for others with a slow template: send it later",
                retry_after_s=_WAIT_S,
            )
        try:
            answer = self._rendered(chat)
        except ProcessEnded as exc:
            self._again(chat)
            if self._pass_on is not None:
                chat.since_s = time.monotonic()  # it waits for others from here on
                self._pass_on(chat)
                return
            answer = Answer("runaway", str(exc))
        chat.answer.set_result(answer)

    def _rendered(self, chat: _WaitingChat) -> Answer:
        try:
            answer = self._process.answer(chat.ask)
            if answer.kind == "unknown":
                answer = self._process.answer(replace(chat.ask, parts=chat.parts))
        except OSError as exc:
            raise Unavailable(f"no process can be started to render chats: {exc}") from exc
        except UnicodeEncodeError as exc:
            raise InvalidRequest(f"the chat is not Unicode text: {exc}", param="messages") from exc
        if answer.kind == "runaway":
            self._again(chat)
        return answer

    def _again(self, chat: _WaitingChat) -> None:
        """Begin with another process: the memory of this one may be full."""
        self._slow.add(chat.ask.key)
        self._process.stop()
        with suppress(OSError):  # then the next chat tells
            self._process.start()


class Renderer:
    """Thread-safe. Its processes start with the first chat and end with this one."""

    def __init__(self) -> None:
        slow = _SlowTemplates()
        self._slow = _Lane("slow chat templates", SLOW_S, slow, niceness=_NICE, idle_s=_IDLE_S)
        self._quick = _Lane("chat templates", QUICK_S, slow, pass_on=self._slow.put)

    def submit(self, ask: Ask, parts: TemplateParts) -> Future[Answer]:
        """Render a chat. The future raises Unavailable or InvalidRequest."""
        chat = _WaitingChat(ask, parts)
        self._quick.put(chat)
        return chat.answer

    def try_out(self, ask: Ask, parts: TemplateParts) -> Answer:
        """Render with a template that nobody knows yet, away from the chats. Blocks."""
        chat = _WaitingChat(ask, parts, patient=True)
        self._slow.put(chat)
        return chat.answer.result()


@cache
def renderer() -> Renderer:
    """Return the renderer of this process."""
    return Renderer()
