"""A store of images of its own, in a folder, which is gone afterwards: buildah's commands."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.images.locks import ROOT
from tests.images.machine import BASE_VARIABLE, debian_mirror, run, write_pip_settings

CACHE = ROOT / ".cache" / "images"
_PACKAGES = "python3-venv,ca-certificates"


@dataclass(frozen=True)
class Image:
    """An image that was built, mounted to be looked into."""

    name: str
    root: Path
    config: dict[str, Any]


class Store:
    """Builds images here. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._buildah = ("buildah", "--root", folder / "root", "--runroot", folder / "run")
        self._base = ""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._base = os.environ.get(BASE_VARIABLE) or self._bookworm()
        return self

    def __exit__(self, *_: object) -> None:
        run(*self._buildah, "umount", "--all")
        run(*self._buildah, "rm", "--all")
        run(*self._buildah, "rmi", "--all", "--force")
        shutil.rmtree(self._folder)

    def build(
        self, target: str, tag: str = "test", *, tree: Path = ROOT, **arguments: str
    ) -> Image:
        """Build the image of a target of a tree's Dockerfile, with arguments of the build."""
        name = f"localhost/sax-{target}:{tag}"
        settings = self._folder / "pip.conf"
        files = {Path("/etc/pip.conf"): settings} | {
            file: file for file in write_pip_settings(settings)
        }
        volumes = [f"--volume={here}:{there}:ro" for there, here in files.items()]
        tell(f"building {target}")
        run(
            *self._buildah,
            *("bud", "--isolation=chroot", "--pull=false", f"--build-arg=BASE={self._base}"),
            *(f"--build-arg={each}={value}" for each, value in arguments.items()),
            *(*volumes, f"--target={target}", f"--tag={name}", tree),
        )
        return self._look(name)

    def _look(self, name: str) -> Image:
        container = run(*self._buildah, "from", "--pull=false", name)
        about = json.loads(run(*self._buildah, "inspect", "--type=image", name))
        (listed,) = json.loads(run(*self._buildah, "images", "--json", name))
        root = Path(run(*self._buildah, "mount", container))
        tell(f"{name} is {listed['size']} with its base")
        return Image(name, root, about["OCIv1"]["config"])

    def _bookworm(self) -> str:
        tell("importing a base of Debian bookworm")
        container = run(*self._buildah, "from", "scratch")
        run(*self._buildah, "add", "--quiet", container, _bookworm_tar(), "/")
        run(*self._buildah, "commit", "--quiet", container, "localhost/bookworm:test")
        run(*self._buildah, "rm", container)
        return "localhost/bookworm:test"


def _bookworm_tar() -> Path:
    """A Debian with Python and its venv, no `python` and no `pip`: made once, then kept."""
    kept = CACHE / "bookworm.tar"
    if not kept.exists():
        tell("fetching Debian bookworm (once, about 90 MB)")
        CACHE.mkdir(parents=True, exist_ok=True)
        half = CACHE / f"bookworm.{os.getpid()}.tar"
        _debootstrap(half)
        half.rename(kept)
    return kept


def _debootstrap(tar: Path) -> None:
    folder = tar.with_suffix(".root")
    try:
        run(
            *("debootstrap", "--variant=minbase", f"--include={_PACKAGES}"),
            *("bookworm", folder, debian_mirror()),
        )
        shutil.rmtree(folder / "var/cache/apt/archives")
        run("tar", "--create", "--one-file-system", f"--file={tar}", f"--directory={folder}", ".")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tell(text: str) -> None:
    """Progress for whoever waits: past pytest's `--capture=sys`, which `make images` asks for."""
    print(f"images: {text}", file=sys.__stderr__, flush=True)
