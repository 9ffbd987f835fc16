"""Fetches checkpoints from a Hugging Face hub into the cache that all of its tools share.

huggingface_hub reads HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE. Its import takes a while,
so it happens where a hub is asked.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_server.checkpoints.hub.choice import choose
from model_server.checkpoints.split_name import is_mmproj, part_names
from sax.errors import CheckpointError, CheckpointNotFound, CheckpointUnreachable
from sax.format import human_bytes as human
from sax.references import HubReference
from sax.types import Progress

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

logger = logging.getLogger(__name__)


_TELL_S = 0.2


class Transfer:
    """Counts bytes. One thread downloads; the load's own thread reports."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._done = 0
        self._stopped = False
        self._guard = threading.Lock()

    def run(self, work: Callable[[], None], report: Callable[[Progress], None]) -> None:
        """Return when `work` has; raises what it raises, and what `report` raises.

        A thread that waits for the network is left behind; it ends at its next bytes.
        """
        failures: list[BaseException] = []

        def guarded() -> None:
            try:
                work()
            except BaseException as exc:
                failures.append(exc)

        thread = threading.Thread(target=guarded, name="download", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                self.tell(report)
                thread.join(_TELL_S)
        except BaseException:
            self._stopped = True
            raise
        if failures:
            raise failures[0]
        self.tell(report)

    def tell(self, report: Callable[[Progress], None]) -> None:
        report(Progress("downloading", min(self._done, self.total), self.total, "bytes"))

    def add(self, count: int) -> None:
        if self._stopped:
            raise DownloadStopped
        with self._guard:
            self._done += count

    def bar(self) -> type[Any]:
        """Return what huggingface_hub takes for the class of a progress bar."""
        from huggingface_hub.utils import tqdm

        transfer = self

        class CountingBar(tqdm):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{**kwargs, "disable": True})
                transfer.add(int(kwargs.get("initial") or 0))

            def update(self, n: float | None = 1) -> bool | None:
                transfer.add(int(n or 0))
                return None

            def update_transfer(self, n: float | None = 1) -> None:
                """Bytes of the network, which `update` counts once they are in the file."""

        return CountingBar


class DownloadStopped(Exception):
    """Nobody waits for the file any more."""


_REFUSED = (401, 403)
_NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


Report = Callable[[Progress], None]
ASK_S = 5.0  # an operator waits for the answer
_INDEX = "model.safetensors.index.json"
_WHOLE = ("model.safetensors", "adapter_model.safetensors")
_CONFIGS = ("config.json", "adapter_config.json")


@dataclass(frozen=True, slots=True)
class HubListing:
    """A commit of a repository, and the files of a checkpoint in it."""

    reference: HubReference  # pinned
    sizes: Mapping[str, int]  # by name, weights last; empty: all are in the cache


class ModelHub:
    """The hub of the environment."""

    def __init__(self, *, endpoint: str | None = None, cache: str | None = None) -> None:
        from huggingface_hub import constants

        self._endpoint = endpoint or constants.ENDPOINT
        self._cache = Path(cache or constants.HF_HUB_CACHE)
        self._offline = constants.HF_HUB_OFFLINE

    def resolve(self, wanted: HubReference) -> HubListing:
        """Return the commit that a reference means now, or meant when it was fetched last.

        Raises CheckpointNotFound, CheckpointUnreachable.
        """
        try:
            return self._asked(wanted)
        except CheckpointUnreachable:
            cached = self._commit(wanted)
            if cached is None or self._find(replace(wanted, revision=cached)) is None:
                raise
            logger.warning(
                "%s: the hub %s is not reachable; using commit %s of the cache",
                wanted,
                self._endpoint,
                cached,
            )
            return HubListing(replace(wanted, revision=cached), {})

    def pin(self, wanted: HubReference) -> HubReference:
        """Return the reference with its commit; one that is whole in the cache asks nobody.

        Raises CheckpointNotFound, CheckpointUnreachable.
        """
        if wanted.pinned and self._find(wanted):
            return wanted
        return self.resolve(wanted).reference

    def fetch(self, wanted: HubReference, report: Report) -> Path:
        """Return the local folder or file of a checkpoint. Raises CheckpointError.

        A pinned one that is whole in the cache asks nobody.
        """
        if wanted.pinned and (found := self._find(wanted)):
            return found
        report(Progress("asking the hub"))
        listing = self.resolve(wanted)
        if listing.sizes:
            self._download(listing, report)
            self._remember(wanted, listing.reference.revision)
        found = self._find(listing.reference)
        if found is None:
            raise CheckpointError(f"{listing.reference} is not whole after its download: try again")
        return found

    def fetch_config(self, wanted: HubReference) -> Path | None:
        """Return config.json alone; None if the checkpoint is a GGUF file. Raises CheckpointError.

        For plans, which need no weights.
        """
        listing = self.resolve(wanted)
        if listing.sizes and "config.json" not in listing.sizes:
            return None
        if listing.sizes:
            self._get(listing.reference, "config.json", None)
        config = self._snapshot(listing.reference) / "config.json"
        return config if config.is_file() else None

    def _asked(self, wanted: HubReference) -> HubListing:
        from huggingface_hub import HfApi

        try:
            if self._offline:
                raise CheckpointUnreachable(
                    f"{wanted} is not in the cache {self._cache}, and HF_HUB_OFFLINE is set: unset "
                    f"it, or fetch it with `sax pull {wanted}` first"
                )
            info = HfApi(endpoint=self._endpoint).model_info(
                wanted.repo,
                revision=wanted.revision or None,
                files_metadata=True,
                timeout=ASK_S,
            )
        except CheckpointUnreachable:
            raise
        except Exception as exc:
            raise told(exc, wanted, self._endpoint) from exc
        return self._chosen(wanted, str(info.sha), info.siblings or [])

    def _chosen(
        self, wanted: HubReference, commit: str, files: Sequence[RepoSibling]
    ) -> HubListing:
        sizes = {file.rfilename: file.size or 0 for file in files}
        try:
            chosen = choose(list(sizes), wanted.file)
        except CheckpointError as exc:
            raise type(exc)(f"{wanted}: {exc.text}", param="checkpoint") from exc
        file = next((n for n in chosen if n.endswith(".gguf") and not is_mmproj(n)), "")
        pinned = HubReference(wanted.repo, commit, file)
        return HubListing(pinned, {name: sizes[name] for name in chosen})

    def _download(self, listing: HubListing, report: Report) -> None:
        missing = {
            name: size
            for name, size in listing.sizes.items()
            if not (self._snapshot(listing.reference) / name).exists()
        }
        transfer = Transfer(sum(missing.values()))
        logger.info("fetching %s: %s", listing.reference, human(transfer.total))

        def work() -> None:
            for name in missing:
                self._get(listing.reference, name, transfer)

        transfer.run(work, report)

    def _get(self, reference: HubReference, name: str, transfer: Transfer | None) -> None:
        from huggingface_hub import hf_hub_download

        try:
            hf_hub_download(
                reference.repo,
                name,
                revision=reference.revision,
                endpoint=self._endpoint,
                cache_dir=self._cache,
                tqdm_class=transfer.bar() if transfer else None,
            )
        except Exception as exc:
            raise told(exc, replace(reference, file=name), self._endpoint) from exc

    def _find(self, pinned: HubReference) -> Path | None:
        """Return a checkpoint that is whole in the cache."""
        folder = self._snapshot(pinned)
        if pinned.file:
            parts = part_names(pinned.file) or [pinned.file]
            return folder / parts[0] if all((folder / part).is_file() for part in parts) else None
        if any((folder / name).is_file() for name in _CONFIGS) and _has_weights(folder):
            return folder
        names = (file.name for file in folder.glob("*.gguf"))
        files = sorted(name for name in names if not is_mmproj(name))
        whole = bool(files) and files == (part_names(files[0]) or files[:1])
        return folder / files[0] if whole else None

    def _commit(self, wanted: HubReference) -> str | None:
        """Return the commit that the cache knows a revision by."""
        if wanted.pinned:
            return wanted.revision
        try:
            return self._ref(wanted).read_text().strip()
        except OSError:
            return None

    def _remember(self, wanted: HubReference, commit: str) -> None:
        """Note the commit of a branch or tag, as downloads by its name do."""
        if wanted.pinned:
            return
        ref = self._ref(wanted)
        ref.parent.mkdir(parents=True, exist_ok=True)
        made = ref.with_name(f".{ref.name}.{os.getpid()}")
        made.write_text(commit)
        made.replace(ref)

    def _ref(self, wanted: HubReference) -> Path:
        return self._repository(wanted) / "refs" / (wanted.revision or "main")

    def _snapshot(self, pinned: HubReference) -> Path:
        return self._repository(pinned) / "snapshots" / pinned.revision

    def _repository(self, reference: HubReference) -> Path:
        return self._cache / f"models--{reference.repo.replace('/', '--')}"


def _has_weights(folder: Path) -> bool:
    if any((folder / name).is_file() for name in _WHOLE):
        return True
    try:
        shards = set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
    except (OSError, ValueError, LookupError, AttributeError):
        return False
    return all((folder / str(name)).is_file() for name in shards)


def told(exc: Exception, wanted: HubReference, endpoint: str) -> CheckpointError:
    """Turn an error of huggingface_hub into one of ours."""
    from huggingface_hub import errors

    if isinstance(exc, errors.GatedRepoError):
        return _not_found(
            f"{wanted} is gated: accept its terms at {endpoint}/{wanted.repo}, and start the model "
            "server with HF_TOKEN of the account that did"
        )
    if isinstance(exc, errors.RevisionNotFoundError):
        return _not_found(f"the hub {endpoint} has no revision {wanted.revision} of {wanted.repo}")
    if isinstance(exc, errors.RepositoryNotFoundError):
        return _not_found(
            f"the hub {endpoint} has no {wanted.repo}, or it is private: check the name, start the "
            "model server with HF_TOKEN of an account that may read it, or, if a folder was "
            "meant, write its absolute path"
        )
    if isinstance(exc, errors.HfHubHTTPError):
        return _of_status(exc, wanted, endpoint)
    if isinstance(exc, ValueError):
        return _not_found(f"{wanted}: {_first_line(exc)}")
    if isinstance(exc, OSError) and exc.errno in _NO_PLACE:
        return CheckpointError(
            f"{wanted} cannot be kept: {exc.strerror}; make room with `sax rm`, or set HF_HOME to "
            "another folder",
            param="checkpoint",
        )
    return _unreachable(wanted, endpoint, _first_line(exc))


def _of_status(exc: Exception, wanted: HubReference, endpoint: str) -> CheckpointError:
    status = getattr(getattr(exc, "response", None), "status_code", 0)
    if status in _REFUSED:
        return _not_found(
            f"the hub {endpoint} refuses {wanted} ({status}): start the model server with HF_TOKEN "
            "of an account that may read it"
        )
    if status == 404:
        return _not_found(f"the hub {endpoint} has no {wanted}")
    return _unreachable(wanted, endpoint, f"it answers {status}")


def _not_found(text: str) -> CheckpointNotFound:
    return CheckpointNotFound(text, param="checkpoint")


def _unreachable(wanted: HubReference, endpoint: str, why: str) -> CheckpointUnreachable:
    return CheckpointUnreachable(
        f"{wanted} is not in the cache of this model server, and the hub {endpoint} is not "
        f"reachable from it ({why}): check its network, set HF_ENDPOINT to a mirror, or copy the "
        "checkpoint to this machine and publish its path",
        param="checkpoint",
    )


def _first_line(exc: Exception) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]
