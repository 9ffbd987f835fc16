"""The places that checkpoints may be loaded from, with --checkpoint_roots."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from model_server.checkpoints.files import entries_below
from model_server.checkpoints.split_name import part_names
from sax.errors import CheckpointError
from sax.references import parse_reference


def local_place(path: str) -> Path | None:
    """Return the place of a checkpoint on this machine; None for a URL of another scheme."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        return None
    return Path(rest if separator else path).expanduser()


class CheckpointRoots:
    """Folders, bucket URLs, and hubs as hf:// or hf://ORG; no roots allow every checkpoint."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = tuple(roots)
        self._folders = [os.path.realpath(root) for root in roots if "://" not in root]
        self._urls = [f"{root.rstrip('/')}/" for root in roots if "://" in root]

    def check(self, path: str) -> None:
        """Raise CheckpointError if a checkpoint, or a file of it, lies elsewhere.

        Links count as what they lead to. Whoever may write below a root is trusted not to exchange
        files while they are read.
        """
        if not self._roots:
            return
        reference = parse_reference(path)
        place = None if reference else local_place(path)
        if place is None:
            self._check_url(str(reference or path))
            return
        try:
            for found in (place, *_links(place), *map(place.with_name, part_names(place.name))):
                self._check_place(path, found)
        except OSError as exc:
            raise CheckpointError(f"{place} cannot be read: {exc.strerror or exc}") from exc

    def _check_url(self, url: str) -> None:
        inside = any(f"{url.rstrip('/')}/".startswith(root) for root in self._urls)
        if not inside or ".." in url.split("/"):
            raise self._outside(url, url)

    def _check_place(self, path: str, place: Path) -> None:
        real = os.path.realpath(place)
        if not any(os.path.commonpath((real, folder)) == folder for folder in self._folders):
            raise self._outside(path, real)

    def _outside(self, path: str, real: str) -> CheckpointError:
        leads = "" if real == path else f" leads to {real}, which"
        return CheckpointError(
            f"{path}{leads} is not below --checkpoint_roots {','.join(self._roots)}: copy the "
            "checkpoint there, or start the model server with another root",
            param="checkpoint",
        )


def _links(folder: Path) -> Iterator[Path]:
    """Yield the symbolic links below a folder; those below linked folders are not followed."""
    if folder.is_dir():
        for entry in entries_below(folder, into_links=False):
            if entry.is_symlink():
                yield Path(entry.path)
