"""Programs from a set that was compiled ahead; others are compiled as usual.

A program is used if its text equals the text that would be compiled here. One load uses one
instance.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import jax

from model_server.engine.compiling import Programs, from_bytes
from model_server.programs.manifest import Manifest
from model_server.programs.place import SetFolder
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)


class Text(Protocol):
    """A lowered program."""

    def as_text(self) -> str: ...


class ReadyPrograms:
    def __init__(self, folder: SetFolder, manifest: Manifest, sax: str) -> None:
        """sax: version of this server."""
        self.limits = manifest.limits
        self._folder = folder
        self._manifest = manifest
        self._sax = sax
        self._entries = {entry.text: entry for entry in manifest.programs}
        self._counting = threading.Lock()
        self._read = 0
        self._compiled: list[str] = []

    def over(self, programs: Programs) -> Programs:
        """Wrap `programs` so that those in the set are not compiled."""
        return _Over(self, programs)

    def tell(self, kind: str) -> None:
        """Log the outcome for the programs of this kind, steps or passes; once per load."""
        where, read = self._folder.url, self._read
        if not self._compiled:
            logger.info(
                "all %d programs of its %s were read from %s: none was compiled", read, kind, where
            )
            return
        other = (
            ""
            if self._sax == self._manifest.sax
            else (f"; made by sax {self._manifest.sax}, this server is {self._sax}")
        )
        logger.warning(
            "%d programs were read from %s and %d compiled (%s)%s",
            *(read, where, len(self._compiled), ", ".join(self._compiled), other),
        )

    def find(self, lowered: jax.stages.Lowered) -> tuple[Any, bytes] | None:
        """Return the program of this text and its bytes. Never raises: compiling always works."""
        entry = self._entries.get(digest_of_text(lowered))
        if entry is None:
            return None
        try:
            body = self._folder.read(entry)
            program = from_bytes(body)
        except CheckpointError as exc:
            logger.warning("%s; compiling it", exc.text)
        except Exception as exc:  # an older compiler may have written anything
            logger.warning("%s cannot be loaded here, compiling it: %s", entry.file, exc)
        else:
            # The text does not contain the names of inputs and outputs.
            if (program.in_tree, program.out_tree) == (lowered.in_tree, lowered.out_tree):
                return program, body
        return None

    def note(self, name: str, *, read: bool) -> None:
        with self._counting:
            self._read += read
            if not read:
                self._compiled.append(name)


class _Over:
    """Looks in the set first, then in `programs`."""

    def __init__(self, ready: ReadyPrograms, programs: Programs) -> None:
        self._ready = ready
        self._programs = programs

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        lowered = lower()
        found = self._ready.find(lowered)
        self._ready.note(name, read=found is not None)
        if found is None:
            return self._programs.compiled(name, lambda: lowered)
        program, body = found
        self._programs.pass_on(name, body)
        return program

    def pass_on(self, name: str, body: bytes) -> None:
        self._programs.pass_on(name, body)


def digest_of_text(lowered: Text) -> str:
    """Digest the compiler's input, which does not depend on where sax is installed.

    See `config.environment`.
    """
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()
