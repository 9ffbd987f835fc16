"""The process that encodes with tokenizers of unknown patterns, within limits of time and memory.

    python -m model_server.text.untrusted_worker SECONDS NICENESS

Reads requests from standard input and writes answers to standard output until the input ends.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import msgspec
import tokenizers

from model_server.sharing.confined.limits import confine, run
from model_server.sharing.confined.pipe import framed
from model_server.text.tokenizer_parts import encoded, parsed
from sax.errors import CheckpointError

MAX_ANSWER = 1 << 30  # bytes
MEMORY = 2 << 30  # bytes that this process may allocate
_ADDRESSES = 4 << 30
_KEPT = 8  # tokenizers; those of one model are up to three


class TextAsk(msgspec.Struct, frozen=True, array_like=True):
    """Encode one text."""

    key: bytes  # names the tokenizer
    text: str
    tokenizer: str = ""  # its JSON, for a process that does not know it


class TextIds(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["ids", "unknown", "ended"]
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []  # characters
    text: str = ""  # how it ended the process


class UntrustedTokenizers:
    """The tokenizers used last, by key."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tokenizers.Tokenizer] = OrderedDict()

    def answer(self, ask: TextAsk) -> TextIds:
        if ask.tokenizer:
            self._known[ask.key] = parsed(ask.tokenizer)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        if (tokenizer := self._known.get(ask.key)) is None:
            return TextIds("unknown")
        self._known.move_to_end(ask.key)
        try:
            found = encoded(tokenizer, ask.text)
        except CheckpointError:  # of the library, which gives up on some patterns
            return TextIds("ended", text="fails")
        except MemoryError:
            return TextIds("ended", text=f"needs more than {MEMORY >> 20} MiB")
        return TextIds("ids", found.ids, found.offsets)


def main() -> None:
    confine(MEMORY, _ADDRESSES)
    untrusted, decoder, encode = (
        UntrustedTokenizers(),
        msgspec.msgpack.Decoder(TextAsk),
        msgspec.msgpack.encode,
    )
    run(lambda frame: framed(encode(untrusted.answer(decoder.decode(frame)))))


if __name__ == "__main__":
    main()
