"""The server's end of a process that renders chat templates."""

from __future__ import annotations

import msgspec

from model_server.sharing.confined.process import ConfinedProcess
from model_server.text.rendering.frames import MAX_ANSWER, Answer, Ask, framed

_DECODER = msgspec.msgpack.Decoder(Answer)
_WORKER = "model_server.text.rendering.worker"


class RenderProcess(ConfinedProcess):
    def __init__(self, seconds: float, niceness: int = 0) -> None:
        """`seconds`: processor time for one request."""
        super().__init__(_WORKER, seconds, niceness, doing="renders it", most=MAX_ANSWER)

    def answer(self, ask: Ask) -> Answer:
        """Raises ProcessEnded, OSError, or UnicodeEncodeError for text with lone surrogates."""
        return self.exchange(framed(ask), _DECODER.decode)
