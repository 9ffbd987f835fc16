"""Encodes with a tokenizer whose patterns are of no known family, in a process with limits."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple

import msgspec
import tokenizers

from model_server.sharing.confined.lanes import LaneKind, Lanes
from model_server.sharing.confined.pipe import framed
from model_server.sharing.confined.process import ConfinedProcess
from model_server.text.untrusted.frames import MAX_ANSWER, TextAsk, TextIds
from sax.errors import InvalidRequest, Unavailable

QUICK_S = 1.0  # processor time of a text in the quick lane: a megabyte takes about that
SLOW_S = 5.0  # and in the slow one, where tokenizers are read first
_WAIT_S = 5.0
_WORKER = "model_server.text.untrusted.worker"
_DECODER = msgspec.msgpack.Decoder(TextIds)


class _UntrustedText(NamedTuple):
    ask: TextAsk
    tokenizer: str


class _EncodingProcess(ConfinedProcess):
    """Tells the process of a tokenizer when it does not know it."""

    def __init__(self, seconds: float, niceness: int) -> None:
        super().__init__(_WORKER, seconds, niceness, doing="encodes it", most=MAX_ANSWER)

    def answer(self, text: _UntrustedText) -> TextIds:
        """Raises ProcessEnded, ProcessStarved, OSError."""
        answer = self._exchanged(text.ask)
        if answer.kind == "unknown":
            ask = msgspec.structs.replace(text.ask, tokenizer=text.tokenizer)
            answer = self._exchanged(ask)
        return answer

    def _exchanged(self, ask: TextAsk) -> TextIds:
        return self.exchange(framed(msgspec.msgpack.encode(ask)), _DECODER.decode)


@cache
def _lanes() -> Lanes[_UntrustedText, TextIds]:
    return Lanes(
        LaneKind(
            name="untrusted tokenizers",
            doing="to encode",
            process=_EncodingProcess,
            quick_s=QUICK_S,
            slow_s=SLOW_S,
            wait_s=_WAIT_S,
            refused=lambda why, retry_after_s: Unavailable(why, retry_after_s=retry_after_s),
            ended=lambda how: TextIds("ended", text=how),
            spent=lambda answer: answer.kind == "ended",
        )
    )


class UntrustedEncoder:
    """Encodes with the tokenizers of one model. Thread-safe; each call waits for its answer."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[bytes, str]] = {}

    def encoded(self, tokenizer: tokenizers.Tokenizer, text: str) -> TextIds:
        """Return the ids of a text, without the post-processor's, and where they are in it.

        tokenizer: one that lives as long as this object. Raises InvalidRequest for a text that
        takes too long, Unavailable.
        """
        if id(tokenizer) not in self._told:
            source = tokenizer.to_str()
            self._told[id(tokenizer)] = hashlib.sha256(source.encode()).digest(), source
        key, source = self._told[id(tokenizer)]
        answer = _lanes().submit(key, _UntrustedText(TextAsk(key, text), source)).result()
        if answer.kind == "ended":
            raise InvalidRequest(
                f"the model's tokenizer {answer.text} on this text: send another text, or publish "
                "a checkpoint with a tokenizer that does not",
                param="prompt",
            )
        return answer
