"""Storage of sets of compiled programs: one folder per set, on disk or in a bucket.

A set is its program files and a manifest with their digests, which is written last. Until then the
manifest has another name, so that readers see only complete sets.
"""

from __future__ import annotations

import hashlib
import logging
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from model_server.checkpoints.orbax.folder import Folder
from model_server.programs.manifest import Manifest, ProgramEntry, decode, encode
from sax.errors import CheckpointError
from sax.names import NO_CHECKPOINT
from sax.references import parse_reference

logger = logging.getLogger(__name__)

FOLDER = "sax-programs"
MANIFEST = "manifest.json"
_UNFINISHED = "unfinished.json"


def beside(checkpoint: str) -> str | None:
    """Return the place of a checkpoint's own programs: in its folder, or beside its file."""
    if checkpoint == NO_CHECKPOINT or parse_reference(checkpoint) is not None:
        return None  # nothing is kept beside files that a cache may drop
    if "://" in checkpoint and not checkpoint.startswith("file://"):
        return f"{checkpoint.rstrip('/')}/{FOLDER}"
    place = Path(checkpoint.removeprefix("file://")).expanduser().absolute()
    return str((place if place.is_dir() else place.parent) / FOLDER)


class SetFolder:
    """One set. Methods raise CheckpointError, naming the place."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    @property
    def url(self) -> str:
        return self._folder.url

    @property
    def name(self) -> str:
        return self._folder.name

    def manifest(self) -> Manifest | None:
        """Return the manifest, or None if the set is absent or unfinished."""
        return self._manifest(MANIFEST)

    def entries(self) -> dict[str, ProgramEntry]:
        """Return entries of earlier runs, finished or not, by name; their files are not checked."""
        found: dict[str, ProgramEntry] = {}
        for name in (MANIFEST, _UNFINISHED):
            try:
                manifest = self._manifest(name)
            except CheckpointError as exc:
                logger.warning("%s; recreating it", exc.text)
                continue
            if manifest is not None:
                found |= {entry.name: entry for entry in manifest.programs}
        return found

    def read(self, entry: ProgramEntry) -> bytes:
        """Read and verify a program. Raises CheckpointError saying how the file differs."""
        body = self._folder.read(entry.file)
        where = f"{self.url}/{entry.file}"
        if body is None:
            raise CheckpointError(f"{where} is missing")
        if len(body) != entry.size:
            raise CheckpointError(f"{where} has {len(body)} bytes of {entry.size}")
        if hashlib.sha256(body).hexdigest() != entry.sha256:
            raise CheckpointError(f"{where} is damaged: its sha256 is not that of the manifest")
        return body

    def add(self, file: str, body: bytes) -> None:
        """Write a program; it counts once a manifest lists it."""
        self._folder.write(file, body)

    def note(self, manifest: Manifest) -> None:
        """Write the progress so far, so that an interrupted run can be continued."""
        self._folder.write(_UNFINISHED, encode(manifest))

    def finish(self, manifest: Manifest, earlier: Iterable[ProgramEntry]) -> None:
        """Write the final manifest and remove programs of earlier runs that it does not list."""
        self._folder.write(MANIFEST, encode(manifest))
        self._folder.remove(_UNFINISHED)
        listed = {entry.file for entry in manifest.programs}
        for entry in earlier:
            if entry.file not in listed:
                self._folder.remove(entry.file)

    def _manifest(self, name: str) -> Manifest | None:
        body = self._folder.read(name)
        try:
            return None if body is None else decode(body)
        except CheckpointError as exc:
            raise CheckpointError(f"{self.url}/{name}: {exc.text}") from exc


def sets_at(place: str) -> Iterator[tuple[SetFolder, Manifest]]:
    """Yield the finished sets; logs those that cannot be read. Raises CheckpointError."""
    folder = Folder(place)
    for name in [] if _is_absent(folder) else folder.children():
        found = SetFolder(folder.child(name))
        try:
            manifest = found.manifest()
        except CheckpointError as exc:
            logger.warning("%s", exc.text)
            continue
        if manifest is not None:
            yield found, manifest


def open_to_all(place: str) -> bool:
    """Return True if every user of this machine can write programs there."""
    folder = Folder(place)
    if not folder.is_local or not folder.path.exists():
        return False
    paths = (folder.path, *(path for path in folder.path.iterdir() if path.is_dir()))
    return any(path.stat().st_mode & stat.S_IWOTH for path in paths)


def _is_absent(folder: Folder) -> bool:
    return folder.is_local and not folder.path.is_dir()
