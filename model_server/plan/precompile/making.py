"""Compiles every program of a model and writes the set; programs already present are kept."""

from __future__ import annotations

import getpass
import hashlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import jax
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from model_server.checkpoints.orbax.folder import Folder
from model_server.config import BESIDE_CHECKPOINTS
from model_server.engine.compiling import compiled_in_turn, to_bytes
from model_server.engine.step_program import StepProgram
from model_server.engine.versions import versions
from model_server.loading.draft_loading import deployed
from model_server.plan.precompile.subject import MadePass, Subject
from model_server.programs.manifest import Manifest, ProgramEntry
from model_server.programs.place import FOLDER, SetFolder, beside, sets_at
from model_server.programs.ready_programs import digest_of_text
from model_server.programs.surroundings import digest_of, draft_key, keys_of
from sax.command import CommandResult
from sax.errors import CheckpointError, LoadFailed, SaxError
from sax.format import human_bytes as human

logger = logging.getLogger(__name__)

_EOL = "\n"
_LESS = "(lower --kv_cache_bytes or --slots, or take a larger slice)"


@dataclass(frozen=True, slots=True)
class Made:
    """Outcome of one program."""

    name: str
    entry: ProgramEntry | None  # None: it failed
    was_there: bool = False
    failure: str = ""


Told = Callable[[Made], None]
Lowering = jax.stages.Lowered | MadePass


def manifest_of(subject: Subject) -> Manifest:
    """Return the manifest of the set to be made, without programs yet."""
    return Manifest(
        model=subject.title,
        overrides=subject.overrides,
        topology=subject.topology,
        weights=digest_of(_leaves(subject.deployment.program)),
        draft=_draft_key(subject),
        keys=keys_of(subject.deployment.layout),
        limits=subject.deployment.limits,
        sax=versions()["sax"],
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"{getpass.getuser()}@{socket.gethostname()}",
        passes=tuple(subject.passes),
    )


def _leaves(program: StepProgram) -> tuple[Any, ...]:
    """Return the shapes of the weights of a model, and of its encoder if it has one."""
    return (*program.leaves, *(program.encoder.leaves if program.encoder else ()))


def _draft_key(subject: Subject) -> str:
    draft = deployed(subject.deployment)
    return draft_key(draft.program.leaves, draft.limits) if draft else ""


def program_count(subject: Subject) -> int:
    return len(subject.lowers) + sum(each.count for each in subject.copies)


class Maker:
    """Makes one set. Several threads call `compiled`, once per program."""

    def __init__(self, subject: Subject, place: str, told: Told, *, keep_going: bool) -> None:
        """keep_going: continue after a program that does not compile."""
        self._subject = subject
        self._manifest = manifest_of(subject)
        self.folder = SetFolder(Folder(place).child(self._manifest.name))
        self._told = told
        self._keep_going = keep_going
        self._there: dict[str, ProgramEntry] = {}
        self._made: dict[str, Made] = {}
        self._writing = threading.Lock()

    def make(self) -> Manifest:
        """Write the set and return its manifest. Raises CheckpointError, LoadFailed."""
        self._there = self.folder.entries()
        # Fail on a place that cannot be written before hours of compiling.
        self.folder.note(self._so_far())
        lowers = self._subject.lowers
        with closing(
            compiled_in_turn(list(lowers), lambda name: self.compiled(name, lowers[name]))
        ) as made:
            for _ in made:
                pass
        for copies in self._subject.copies:
            copies.compile(self)
        manifest = self._whole()
        self.folder.finish(manifest, self._there.values())
        return manifest

    @property
    def failures(self) -> list[Made]:
        return [made for made in self._made.values() if made.entry is None]

    def compiled(self, name: str, lower: Callable[[], Lowering]) -> Any:
        """Compile and write; returns nothing, as no caller runs the program here."""
        made = self._one(name, lower)
        with self._writing:
            self._made[name] = made
            if not made.was_there:
                self.folder.note(self._so_far())
        self._told(made)

    def pass_on(self, name: str, body: bytes) -> None:
        """Do nothing: there is no other host."""

    def _one(self, name: str, lower: Callable[[], Lowering]) -> Made:
        try:
            return self._compile(name, lower())
        except (CheckpointError, MemoryError):
            raise
        except Exception as exc:
            if not self._keep_going:
                raise LoadFailed(f"{name}: {_reason(exc)}") from exc
            return Made(name, None, failure=_reason(exc))

    def _compile(self, name: str, lowered: Lowering) -> Made:
        text = digest_of_text(lowered)
        there = self._there.get(name)
        if there is not None and there.text == text and self._is_whole(there):
            return Made(name, there, was_there=True)
        started = time.monotonic()
        body = to_bytes(lowered.compile())
        entry = ProgramEntry(
            name=name,
            text=text,
            file=f"{text[:16]}.program",
            size=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
            compile_s=round(time.monotonic() - started, 2),
        )
        self.folder.add(entry.file, body)
        return Made(name, entry)

    def _is_whole(self, entry: ProgramEntry) -> bool:
        try:
            self.folder.read(entry)
        except CheckpointError as exc:
            logger.warning("%s; compiling it again", exc.text)
            return False
        return True

    def _so_far(self) -> Manifest:
        """Include what an earlier run left: this run may still get to it."""
        made = {name: made.entry for name, made in self._made.items() if made.entry}
        return self._with({**self._there, **made}.values())

    def _whole(self) -> Manifest:
        order = {name: place for place, name in enumerate(self._subject.lowers)}
        entries = [made.entry for made in self._made.values() if made.entry]
        return self._with(sorted(entries, key=lambda entry: order.get(entry.name, len(order))))

    def _with(self, entries: Iterable[ProgramEntry]) -> Manifest:
        return msgspec.structs.replace(self._manifest, programs=tuple(entries))


def _reason(exc: Exception) -> str:
    if isinstance(exc, SaxError):
        return exc.text
    said = f"{type(exc).__name__}: {str(exc).strip().partition(_EOL)[0][:300]}"
    return f"{said} {_LESS}" if "RESOURCE_EXHAUSTED" in said else said


def make_set(subject: Subject, place: str, keep_going: bool) -> dict[str, Any]:
    """Compile and write every program; return where they are, how many, and how many failed."""
    console = Console(stderr=True)
    tell = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bars:
        title = f"compiling {subject.title} for {subject.topology}"
        task = bars.add_task(title, total=program_count(subject))

        def told(made: Made) -> None:
            tell(_line(made))
            bars.advance(task)

        maker = Maker(subject, place, told, keep_going=keep_going)
        try:
            manifest = maker.make()
        except CheckpointError as exc:
            hint = "" if "cannot be written" not in exc.text else ": name another place with --to"
            raise CheckpointError(f"{exc.text}{hint}") from exc
    tell(f"{len(manifest.programs)} programs, {human(manifest.size)}, in {maker.folder.url}")
    if failed := len(maker.failures):
        tell(f"{failed} programs did not compile; a server compiles these itself", style="red")
    else:
        tell(_how_to_serve(place, subject))
    programs, size = len(manifest.programs), manifest.size
    return {"place": maker.folder.url, "programs": programs, "bytes": size, "failed": failed}


def _how_to_serve(place: str, subject: Subject) -> str:
    is_beside = subject.has_checkpoint and place.endswith(FOLDER)
    value = BESIDE_CHECKPOINTS if is_beside else place
    return f"start servers with --programs {value} to use them"


def _line(made: Made) -> str:
    if made.entry is None:
        return f"{made.name}: {made.failure}"
    if made.was_there:
        return f"{made.name}: already there, {human(made.entry.size)}"
    return f"{made.name}: compiled in {made.entry.compile_s:.1f} s, {human(made.entry.size)}"


def list_sets(place: str) -> CommandResult:
    """Return the sets at a place or beside a checkpoint. Raises CheckpointError if none are."""
    places = [place, beside(place) or place]
    sets = next((found for each in places if (found := list(sets_at(each)))), [])
    if not sets:
        raise CheckpointError(f"{place} holds no compiled programs, nor does {places[1]}")
    values = [{"place": folder.url, **msgspec.to_builtins(manifest)} for folder, manifest in sets]
    return CommandResult(values, "\n".join(_described(*each) for each in sets))


def _described(folder: SetFolder, manifest: Manifest) -> str:
    keys, limits = manifest.keys, manifest.limits
    libtpu = f", libtpu {keys.libtpu}" if keys.libtpu else ""
    return "\n  ".join(
        (
            folder.url,
            " ".join((manifest.model, *(f"{k}={v}" for k, v in manifest.overrides.items()))),
            f"{manifest.topology}: mesh {keys.mesh}, hosts {keys.hosts}, jax {keys.jax}{libtpu}",
            f"{limits.slots} slots, {limits.pages} KV pages of {limits.page_size} tokens",
            f"{len(manifest.programs)} programs, {human(manifest.size)}, made {manifest.made_at} "
            f"by {manifest.made_by} with sax {manifest.sax}",
        )
    )
