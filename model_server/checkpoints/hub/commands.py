"""The commands `sax pull`, `sax models` and `sax rm`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sax.command import CommandResult, check_installed, printable, say, show_table
from sax.errors import InvalidRequest, NotFound
from sax.format import count
from sax.format import human_bytes as human
from sax.references import HUB, HubReference, parse_reference
from sax.types import Progress

_FORMATS = (".gguf", ".safetensors")
_SHORTEST = 4  # of the beginning of a commit


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One commit of a repository, on this machine."""

    reference: HubReference
    names: frozenset[str]  # branches and tags that mean this commit
    size: int
    format: str  # gguf, safetensors, or "" for other files
    used_s: float  # when a file was last read, as far as the file system keeps that
    remove: Callable[[], None]

    @property
    def id(self) -> str:
        return f"{HUB}{self.reference.repo}"

    @property
    def revision(self) -> str:
        return self.reference.revision


def cached_models() -> list[CachedModel]:
    """Return what is here, the last used first."""
    return sorted(_repositories(), key=lambda model: -model.used_s)


def find_cached(text: str) -> list[CachedModel]:
    """Return what an id means: all commits of a repository, or one of them.

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


def _means(wanted: HubReference, model: CachedModel) -> bool:
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


def _format(names: Iterable[str]) -> str:
    ends = {Path(name).suffix for name in names}
    return next((end.removeprefix(".") for end in _FORMATS if end in ends), "")


_SHORT = 12  # of a commit, in tables


def pull(
    ctx: typer.Context,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="ORG/NAME or hf://ORG/NAME[@REVISION][:FILE.gguf].",
        ),
    ],
) -> CommandResult:
    """Fetch a checkpoint into this machine's cache.

    Prints its local path. Fetches only what a model server reads: safetensors files with their
    configuration and tokenizer, or one GGUF file. Files that are whole in the cache are not fetched
    again. HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE mean what they mean to other tools.
    Needs no cell; a model server on another machine fetches for itself.

    \b
    Examples:
      sax pull HuggingFaceTB/SmolLM2-135M-Instruct
      sax pull hf://org/name-GGUF@v1.0:Q4_K_M
    """
    check_installed(ctx)
    if parse_reference(checkpoint) is None:
        raise InvalidRequest(f"{checkpoint} is a local path or a bucket: there is nothing to fetch")
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bars

    from model_server.checkpoints.hub.fetching import local_copy

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    tail = (TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*columns, *tail, console=Console(stderr=True)) as bars:
        task = bars.add_task("starting", total=None)

        def report(progress: Progress) -> None:
            bars.update(
                task,
                description=progress.phase,
                completed=progress.done,
                total=progress.total or None,
            )

        place = local_copy(checkpoint, report)
    return CommandResult({"checkpoint": checkpoint, "path": str(place)}, str(place))


def models(ctx: typer.Context) -> CommandResult:
    """List the checkpoints in this machine's caches.

    Shows what model servers, `sax pull` and other tools of Hugging Face have fetched.

    \b
    Examples:
      sax models
      sax models --json
    """
    check_installed(ctx)
    found = cached_models()
    return CommandResult([_value(model) for model in found], lambda: _show(found))


def rm(
    ctx: typer.Context,
    checkpoint: Annotated[
        str, typer.Argument(metavar="ID", help="As `sax models` lists it; @REVISION for one of it.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> CommandResult:
    """Remove a checkpoint from this machine's cache.

    A published model that was loaded from it goes on; a later load fetches it again.

    \b
    Examples:
      sax rm HuggingFaceTB/SmolLM2-135M-Instruct
      sax rm hf://org/name@0a1b2c3d --yes
    """
    check_installed(ctx)

    found = find_cached(checkpoint)
    size = human(sum(model.size for model in found))
    what = f"{checkpoint}: {count(len(found), 'revision')}, {size}"
    if not yes and not typer.confirm(f"remove {printable(what)}?", err=True):
        raise typer.Exit(1)
    for model in found:
        model.remove()
    return CommandResult([_value(model) for model in found], f"removed {what}")


def _show(found: list[CachedModel]) -> None:
    if not found:
        say("nothing was fetched yet; `sax pull` does")
        return
    headings = ("ID", "REVISION", "SIZE", "FORMAT", "LAST USED")
    show_table(headings, [_row(model) for model in found], ("LAST USED", "FORMAT", "REVISION"))


def _row(model: CachedModel) -> tuple[str, ...]:
    names = f" ({', '.join(sorted(model.names))})" if model.names else ""
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.used_s))
    return (
        model.id,
        f"{model.revision[:_SHORT]}{names}".strip(),
        human(model.size),
        model.format or "other",
        used,
    )


def _value(model: CachedModel) -> dict[str, object]:
    return {
        "id": model.id,
        "revision": model.revision,
        "names": sorted(model.names),
        "size": model.size,
        "format": model.format,
        "last_used": model.used_s,
    }
