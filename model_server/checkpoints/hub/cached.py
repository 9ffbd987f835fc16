"""Lists and removes what was fetched: the cache that tools of Hugging Face share, and ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from model_server.checkpoints.hub.packages import packages_folder
from sax.errors import InvalidRequest, NotFound
from sax.references import HUB, HubReference, PackageReference, Reference, parse_reference

_FORMATS = (".gguf", ".safetensors")
_SHORTEST = 4  # of the beginning of a commit


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One commit of a repository, or one version of a package, on this machine."""

    reference: Reference
    names: frozenset[str]  # branches and tags that mean this commit
    size: int
    format: str  # gguf, safetensors, or "" for other files
    used_s: float  # when a file was last read, as far as the file system keeps that
    remove: Callable[[], None]

    @property
    def id(self) -> str:
        if isinstance(self.reference, HubReference):
            return f"{HUB}{self.reference.repo}"
        return str(self.reference)

    @property
    def revision(self) -> str:
        """The commit; "" for a package."""
        return self.reference.revision if isinstance(self.reference, HubReference) else ""


def cached_models() -> list[CachedModel]:
    """Return what is here, the last used first."""
    return sorted([*_repositories(), *_packages()], key=lambda model: -model.used_s)


def find_cached(text: str) -> list[CachedModel]:
    """Return what an id means: all commits of a repository, one of them, or a version.

    Raises InvalidRequest, NotFound.
    """
    wanted = parse_reference(text)
    if wanted is None:
        raise InvalidRequest(
            f"{text} is not in a cache: give an id that `sax models` lists; `rm` removes other "
            "files"
        )
    if wanted.file:
        raise InvalidRequest(f"{text} names one file: give its id without {wanted.file}")
    found = [model for model in cached_models() if _means(wanted, model)]
    if not found:
        raise NotFound(f"{text} is not in the caches of this machine; `sax models` lists them")
    return found


def _means(wanted: Reference, model: CachedModel) -> bool:
    if not (isinstance(wanted, HubReference) and isinstance(model.reference, HubReference)):
        return wanted == model.reference
    if wanted.repo != model.reference.repo:
        return False
    short = len(wanted.revision) >= _SHORTEST and model.revision.startswith(wanted.revision)
    return not wanted.revision or short or wanted.revision in model.names


def _repositories() -> Iterable[CachedModel]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        found = scan_cache_dir()
    except CacheNotFound:
        return
    for repo in found.repos:
        for each in repo.revisions if repo.repo_type == "model" else ():
            yield CachedModel(
                HubReference(repo.repo_id, each.commit_hash),
                each.refs,
                each.size_on_disk,
                _format(file.file_name for file in each.files),
                max((file.blob_last_accessed for file in each.files), default=repo.last_accessed),
                found.delete_revisions(each.commit_hash).execute,
            )


def _packages() -> Iterable[CachedModel]:
    for folder in packages_folder().glob("[!.]*/[!.]*"):
        files = [file for file in folder.rglob("*") if file.is_file()]
        yield CachedModel(
            PackageReference(folder.parent.name, folder.name),
            frozenset(),
            sum(file.stat().st_size for file in files),
            _format(file.name for file in files),
            max((file.stat().st_atime for file in files), default=0.0),
            lambda folder=folder: _remove(folder),
        )


def _remove(folder: Path) -> None:
    shutil.rmtree(folder)
    if not any(folder.parent.iterdir()):
        folder.parent.rmdir()


def _format(names: Iterable[str]) -> str:
    ends = {Path(name).suffix for name in names}
    return next((end.removeprefix(".") for end in _FORMATS if end in ends), "")
