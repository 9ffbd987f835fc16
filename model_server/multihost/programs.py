"""Share compiled programs between hosts: a replica compiles once, not once per host.

The primary compiles (or finds an earlier result), keeps the program in a file and sends it to the
hosts with the same instruction set; hosts that differ or cannot read it compile for themselves.

JAX's own cache does not work here: its keys differ from host to host on CPUs, only the first host
writes, and XLA:CPU cannot serialise a program again that was read from it. Serialised programs are
code: they are accepted from the primary alone.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from model_server.engine.compiling import from_bytes, to_bytes
from sax.errors import Cancelled

logger = logging.getLogger(__name__)

Lower = Callable[[], "jax.stages.Lowered"]


class ProgramFiles:
    """Serialised programs in a folder, by key."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        try:
            return (self._folder / key).read_bytes() if self._folder else None
        except OSError:
            return None

    def put(self, key: str, body: bytes) -> None:
        """Store a program; if the folder cannot be written, only time is lost."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._folder / f"{key}.{os.getpid()}"
            temporary.write_bytes(body)
            temporary.replace(self._folder / key)
        except OSError as exc:
            logger.warning("cannot store compiled programs in %s: %s", self._folder, exc)


class KeptPrograms:
    """Compiles programs and keeps them on disk, for one host."""

    def __init__(self, files: ProgramFiles, salt: str) -> None:
        """salt: everything else a program depends on, such as the machine and the hosts."""
        self._files = files
        self._salt = salt

    def compiled(self, name: str, lower: Lower) -> Any:
        return self.found(lower())[0]

    def pass_on(self, name: str, body: bytes) -> None:
        """Do nothing: there is no other host."""

    def found(self, lowered: jax.stages.Lowered) -> tuple[Any, bytes | None]:
        """Return the program and its bytes; None if this backend cannot serialise it."""
        key = hashlib.sha256(f"{self._salt}\n{lowered.as_text()}".encode()).hexdigest()
        body = self._files.get(key)
        program = _load(body) if body is not None else None
        if program is None:
            program = lowered.compile()
            body = _serialised(program)
            if body is not None:
                self._files.put(key, body)
        return program, body


class SharedPrograms:
    """The primary's programs: compiles, keeps and sends."""

    def __init__(self, kept: KeptPrograms, send: Callable[[str, bytes | None], None]) -> None:
        self._kept = kept
        self._send = send

    def compiled(self, name: str, lower: Lower) -> Any:
        program, body = self._kept.found(lower())
        self._send(name, body)
        return program

    def pass_on(self, name: str, body: bytes) -> None:
        """Send a program that was compiled ahead of time."""
        self._send(name, body)


class ReceivedPrograms:
    """A secondary's programs: waits for the primary to send them. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bodies: dict[str, bytes | None] = {}
        self._closed = False

    def put(self, name: str, body: bytes | None) -> None:
        """Store what the primary sent; None: it could not be sent."""
        with self._changed:
            self._bodies[name] = body
            self._changed.notify_all()

    def close(self) -> None:
        """Make `compiled` raise Cancelled: nothing more will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def compiled(self, name: str, lower: Lower) -> Any:
        """Return the primary's program, or compile it here. Raises Cancelled once closed."""
        with self._changed:
            # Needs no timeout: this process ends when the primary's heartbeat does, and a failed
            # load ends in a Drop, which closes this.
            self._changed.wait_for(lambda: self._closed or name in self._bodies)
            if name not in self._bodies:
                raise Cancelled("the load was cancelled")
            body = self._bodies.pop(name)
        program = _load(body) if body is not None else None
        return program if program is not None else lower().compile()

    def pass_on(self, name: str, body: bytes) -> None:
        """Do nothing: the primary sends it to every host."""


def _serialised(program: Any) -> bytes | None:
    try:
        return to_bytes(program)
    except Exception as exc:  # unsupported by the backend: every host compiles
        logger.warning("programs of this backend cannot be sent to other hosts: %s", exc)
        return None


def _load(body: bytes) -> Any:
    try:
        return from_bytes(body)
    except Exception as exc:
        logger.warning("cannot read a compiled program, compiling it: %s", exc)
        return None
