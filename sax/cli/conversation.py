"""A conversation with a model: what was said so far, and how the next answer is asked for."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sax.cli.image_files import with_images
from sax.client import Client
from sax.command import printable, say
from sax.errors import SaxError
from sax.types import GenerateRequest, Message, SamplingParams, TokenChunk


@dataclass(slots=True)
class Conversation:
    """The turns of one conversation. Settings may change between them."""

    client: Client
    model_id: str
    sampling: SamplingParams
    system: str | None = None
    priority: int = 0
    timeout_s: float | None = None
    stream: bool = True
    turns: list[Message] = field(default_factory=list[Message])
    files: list[Path] = field(default_factory=list[Path])  # images of the next message
    sounds: list[Path] = field(default_factory=list[Path])  # likewise
    session: str = field(default_factory=lambda: uuid.uuid4().hex)

    def ask(self, text: str) -> None:
        """Print the answer to a message and remember both. Raises SaxError, KeyboardInterrupt."""
        self._answer(self._turn(text), [])

    def answer_or_tell(self, text: str) -> None:
        """Print the answer, as far as it comes: an error or Ctrl-C ends it, and no more.

        What was answered until Ctrl-C is remembered.
        """
        turn, parts = Message("user", text), list[str]()
        try:
            turn = self._turn(text)
            self._answer(turn, parts)
        except SaxError as error:
            say(f"sax: {error.text}")
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            sys.stdout.flush()
            if parts and self.stream:
                self.turns += [turn, Message("assistant", "".join(parts))]

    def _turn(self, text: str) -> Message:
        """Return the next message. Raises InvalidRequest for a file that cannot be read."""
        files, self.files = self.files, []
        sounds, self.sounds = self.sounds, []
        return Message("user", with_images(text, files, sounds))

    def _answer(self, turn: Message, parts: list[str]) -> None:
        system = [] if self.system is None else [Message("system", self.system)]
        request = GenerateRequest(
            model_id=self.model_id,
            prompt=(*system, *self.turns, turn),
            sampling=self.sampling,
            priority=self.priority,
            timeout_s=self.timeout_s,
            session=self.session,
        )
        print_answer(self.client.generate(request), stream=self.stream, parts=parts)
        self.turns += [turn, Message("assistant", "".join(parts))]


def print_answer(
    chunks: Iterable[TokenChunk], *, stream: bool, parts: list[str] | None = None
) -> None:
    """Print a stream and a newline on stdout; add its texts to `parts` as they come."""
    texts = [] if parts is None else parts
    for chunk in chunks:
        texts.append(chunk.text)
        if stream:
            _write(chunk.text)
    if not stream:
        _write("".join(texts))
    sys.stdout.write("\n")
    sys.stdout.flush()


def _write(text: str) -> None:
    # Models may emit control characters: escape them on a terminal, pass them on in a pipe.
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
