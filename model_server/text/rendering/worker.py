"""The process that renders chat templates, within limits of time and memory.

    python -m model_server.text.rendering.worker SECONDS NICENESS

Reads requests from standard input and writes answers to standard output until the input ends, which
it does when the server dies, however it dies. The kernel ends this process if one request uses more
than SECONDS of processor time, even inside one call of C code.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections import OrderedDict
from contextlib import suppress

import msgspec

from model_server.text.control_tokens import ControlTokens
from model_server.text.rendering.chat_values import chat_values
from model_server.text.rendering.continued import continued
from model_server.text.rendering.frames import (
    Answer,
    Ask,
    TemplateParts,
    framed,
    read_frame,
    write_frame,
)
from model_server.text.rendering.sandbox import (
    BrokenTemplate,
    CompiledTemplate,
    RefusedChat,
    RunawayTemplate,
)
from sax.chat import ChatOptions, Message

MEMORY = 512 << 20  # bytes that this process may allocate
_ADDRESSES = 2 << 30  # bytes of address space: mapped libraries and locales count here
_KEPT = 1 << 21  # characters of the templates that stay compiled
_UNKNOWN = Answer("unknown")


class _KnownTemplate:
    def __init__(self, parts: TemplateParts) -> None:
        self.size = parts.size
        self._fixed = {"bos_token": parts.bos_token, "eos_token": parts.eos_token}
        self._control_tokens = ControlTokens(parts.control_tokens)
        self._compiled = CompiledTemplate(parts.source)

    def render(self, chat: tuple[Message, ...], options: ChatOptions) -> str:
        guard = self._control_tokens.guard
        text = self._compiled.render({**chat_values(chat, options, guard), **self._fixed})
        if not options.continue_final_message:
            return text
        return continued(text, guard(chat[-1].content if chat else ""))


class Templates:
    """The templates compiled last, by key."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, _KnownTemplate] = OrderedDict()

    def answer(self, ask: Ask) -> Answer:
        try:
            template = self._template(ask)
            if template is None:
                return _UNKNOWN
            if ask.chat is None:
                return Answer("text")
            return Answer("text", template.render(ask.chat, ask.options))
        except BrokenTemplate as exc:
            return Answer("broken", str(exc))
        except RefusedChat as exc:
            return Answer("refused", str(exc))
        except RunawayTemplate as exc:
            return Answer("runaway", str(exc))
        except MemoryError:
            return Answer("runaway", f"needs more than {MEMORY >> 20} MiB; send a shorter chat")

    def _template(self, ask: Ask) -> _KnownTemplate | None:
        if found := self._known.get(ask.key):
            self._known.move_to_end(ask.key)
        elif ask.parts is not None:
            found = self._known[ask.key] = _KnownTemplate(ask.parts)
            while len(self._known) > 1 and sum(t.size for t in self._known.values()) > _KEPT:
                self._known.popitem(last=False)
        return found


def _confine() -> None:
    """Set the limits; not on systems that lack one of them, where the other limits still hold."""
    limits = {
        resource.RLIMIT_DATA: MEMORY,
        resource.RLIMIT_AS: _ADDRESSES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    # Signals for the server's group: its requests still need this process while it drains.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The timer's signal. libtpu has the server ignore it, which a child process inherits.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def _framed(answer: Answer) -> bytes:
    try:
        return framed(answer)
    except UnicodeEncodeError:
        return framed(Answer("refused", "writes text that is not Unicode"))
    except MemoryError:
        return framed(Answer("runaway", "writes more text than fits into memory"))


def serve(seconds: float, requests: int, answers: int) -> None:
    """Answer one request after the other; `requests` and `answers` are file descriptors."""
    templates = Templates()
    decoder = msgspec.msgpack.Decoder(Ask)
    while (frame := read_frame(requests)) is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = _framed(templates.answer(decoder.decode(frame)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(answers, answer)


def main() -> None:
    _confine()
    os.nice(int(sys.argv[2]))
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing but answers may reach the server
    with suppress(BrokenPipeError):
        serve(float(sys.argv[1]), 0, answers)


if __name__ == "__main__":
    main()
