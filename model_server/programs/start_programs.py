"""Programs of a model's steps: those of its last start, loaded, and others, compiled and kept.

If the key of the last start is this one's, its programs are loaded by name: nothing is traced or
lowered. Otherwise each is traced and looked up by its text, as in a set that was compiled ahead.
One load uses one instance.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from model_server.engine.compiling import Programs, from_bytes, to_bytes
from model_server.programs.last_start import (
    LastStart,
    MadeProgram,
    mark_used,
    read_start,
    write_start,
)
from model_server.programs.ready_programs import digest_of_text
from sax.errors import CheckpointError

logger = logging.getLogger(__name__)
_ENOUGH = 3  # starts that measure steps: the machine was idle in one of them


class StartPrograms:
    """Thread-safe, but for `keep`."""

    def __init__(
        self, path: Path, key: str, names: Collection[str], programs: Programs, model: str
    ) -> None:
        """key: of all that the programs depend on. names: of those to keep; others, and a second
        one of a name, come from `programs`. model: for the log."""
        self.path = path
        self.key = key
        self._programs = programs
        self._model = model
        self._lock = threading.Lock()
        self._left = set(names)
        self._last = self._read()
        self._by_text = {each.text: each for each in self._last.programs.values()}
        self._made: dict[str, MadeProgram] = {}
        self._asked = self._compiled = 0
        self._unfit = ""  # why a program of the last start was not used

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        with self._lock:
            kept = name in self._left
            self._left.discard(name)
            self._asked += kept
        if not kept:
            return self._programs.compiled(name, lower)
        found = self._named(name)
        return self._with_text(name, lower()) if found is None else found

    def pass_on(self, name: str, body: bytes) -> None:
        self._programs.pass_on(name, body)

    @property
    def seconds(self) -> tuple[float, ...]:
        """The least that steps took in the last starts, if all programs are theirs; else ()."""
        return self._last.seconds if self._is_the_last and not self._left else ()

    @property
    def is_measured(self) -> bool:
        """Return True if enough starts have measured `seconds`."""
        return bool(self.seconds) and self._last.measured >= _ENOUGH

    @property
    def _is_the_last(self) -> bool:
        return self.key == self._last.key and not self._compiled

    def keep(self, seconds: Sequence[float]) -> None:
        """Keep these programs for the next start, and what steps take; once all have run."""
        if self._unfit:
            logger.warning("%s: compiled again: %s", self.path, self._unfit)
        measured = self._last.measured + 1 if self.seconds else 1
        if self.is_measured:
            mark_used(self.path)
        elif not self._write(LastStart(self.key, self._made, tuple(seconds), measured)):
            return
        logger.info(
            "%s: of %d programs %d were loaded, as its last start left them in %s, %d compiled",
            *(self._model, self._asked, self._asked - self._compiled, self.path, self._compiled),
        )
        self._last, self._by_text, self._made = LastStart(), {}, {}  # some megabytes

    def forget(self) -> None:
        """Let the next start compile: a program was loaded, and does not run."""
        if self._last.programs:
            logger.warning("%s: a program does not run: %s is removed", self._model, self.path)
            self.path.unlink(missing_ok=True)

    def _write(self, start: LastStart) -> bool:
        try:
            write_start(self.path, start)
        except (CheckpointError, OSError) as exc:
            logger.warning("%s: its programs are not kept: %s", self._model, exc)
            return False
        return True

    def _read(self) -> LastStart:
        try:
            return read_start(self.path)
        except CheckpointError as exc:
            logger.warning("%s: compiling its programs: %s", self._model, exc.text)
            return LastStart()

    def _named(self, name: str) -> Any:
        if self.key != self._last.key:
            return None
        return self._loaded(name, self._last.programs.get(name))

    def _with_text(self, name: str, lowered: jax.stages.Lowered) -> Any:
        text = digest_of_text(lowered)
        program = self._loaded(name, self._by_text.get(text))
        # The text does not contain the names of inputs and outputs.
        if program is not None and (program.in_tree, program.out_tree) == (
            lowered.in_tree,
            lowered.out_tree,
        ):
            return program
        program = _compiled_anew(lowered)
        self._add(name, text, program)
        return program

    def _loaded(self, name: str, made: MadeProgram | None) -> Any:
        """Return a program of the last start; None: there is none, or it does not load."""
        if made is None:
            return None
        try:
            program = from_bytes(made.body)
        except Exception as exc:  # the file is whole, so an older compiler wrote it
            self._unfit = str(exc)
            return None
        self._made[name] = made
        return program

    def _add(self, name: str, text: str, program: Any) -> None:
        with self._lock:
            self._compiled += 1
        try:
            self._made[name] = MadeProgram(text, to_bytes(program))
        except Exception as exc:  # whatever the backend raises: the next start compiles it again
            self._made.pop(name, None)
            self._unfit = f"this backend cannot serialise {name}: {exc}"


# jax hands one program to all who compile the same function with the same options in a process:
# with an option of our own (its value is XLA's default), an earlier compile of it is not found.
_OWN_OPTIONS: dict[str, str | bool] = {"xla_embed_ir_in_executable": False}


def _compiled_anew(lowered: jax.stages.Lowered) -> Any:
    """Compile a program that can be serialised.

    XLA:CPU cannot serialise one that jax has read from its compile cache, in this compile or in an
    earlier one: the copy loads, and fails when it runs.
    """
    with _CACHE_OFF:
        return lowered.compile(compiler_options=_OWN_OPTIONS)


class _CacheOff:
    """Turns jax's compile cache off, in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = True

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._before = _cache_is_on()
                self._turn(on=False)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._turn(on=self._before)

    def _turn(self, *, on: bool) -> None:
        if _cache_is_on() != on:
            jax.config.update("jax_enable_compilation_cache", on)
            compilation_cache.reset_cache()  # jax asks once whether it is on


def _cache_is_on() -> bool:
    return bool(jax.config.jax_enable_compilation_cache)  # pyright: ignore[reportAttributeAccessIssue]


_CACHE_OFF = _CacheOff()
