"""Builds what a release publishes, and tries it: all but the upload.

    python -m tests.tools.release wheels --to dist          # of this tree (make wheels)
    python -m tests.tools.release rehearse v0.2.0 --to dist # make release-dry-run
    python -m tests.tools.release cut v0.2.0                # write the version into this tree
    python -m tests.tools.release notes v0.2.0              # print its section of the changelog

`rehearse` copies the tree, cuts the version there, builds the sdist, wheels for Linux x86-64 and
arm64 (Zig compiles both) and one for other machines, checks them, packs the Helm chart, installs
this machine's wheel into an empty environment, asks the model there, and writes the SBOM of that
environment, the statement of where the files come from and the sums of all. Then it builds images,
as root and where buildah is. It says how long each took. It needs the dependency group `release`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as version_here
from pathlib import Path

from tests.house import ROOT
from tests.images.machine import missing
from tests.images.store import Store
from tests.tools.release.cutting import CannotCut, notes_of, version_of
from tests.tools.release.distributions import (
    MACHINES,
    SUMS,
    build_chart,
    build_sdist,
    build_wheels,
    sums_of,
    write_sums,
    wrong_with,
)
from tests.tools.release.installed import Environment, environment
from tests.tools.release.provenance import FILE as PROVENANCE
from tests.tools.release.provenance import statement
from tests.tools.release.tree import commit_of, copy_tree, cut

_MADE = ("*.whl", "*.tar.gz", "sax-*.tgz", "NOTES.md", "sbom.cdx.json", PROVENANCE, SUMS)
_BUILDERS = ("build", "helm-python-sdk", "jaxlib", "setuptools", "ziglang")
_REPOSITORY = "SAX_REPOSITORY"  # the address that the metadata of a release names


def main() -> int:
    given = _arguments()
    try:
        match given.what:
            case "wheels":
                _build(ROOT, given.to, given.machines)
            case "cut":
                cut(ROOT, version_of(given.tag), _today(), os.environ.get(_REPOSITORY, ""))
            case "notes":
                print(notes_of((ROOT / "CHANGELOG.md").read_text(), version_of(given.tag)))
            case _:
                _rehearse(given)
    except CannotCut as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def _rehearse(given: argparse.Namespace) -> None:
    version, began = version_of(given.tag), _now()
    repository = os.environ.get(_REPOSITORY, "")
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(ROOT, Path(folder) / "tree")
        cut(tree, version, _today(), repository)
        with _timed("sdist and wheels"):
            wheels = _build(tree, given.to, given.machines)
        build_chart(tree, given.to)
        packages = (str(each) for each in given.to.iterdir() if each.suffix in (".whl", ".gz"))
        subprocess.run((sys.executable, "-m", "twine", "check", "--strict", *packages), check=True)
        (given.to / "sbom.cdx.json").write_text(_install_and_try(wheels, given.model))
        notes = notes_of((tree / "CHANGELOG.md").read_text(), version)
        (given.to / "NOTES.md").write_text(f"{notes}\n")
        _state(given, repository, began)
        _build_images(tree, given.images, version, repository)
    for each in sorted(given.to.iterdir()):
        print(f"{each.stat().st_size:>12,}  {each.name}")


def _install_and_try(wheels: list[Path], model: Path) -> str:
    """Install this machine's wheel elsewhere, ask a model there, return that environment's SBOM."""
    here = min(filter(_fits, wheels), key=lambda each: each.name.endswith("-any.whl"))
    with tempfile.TemporaryDirectory() as folder:
        with _timed("installation"):
            installed = environment(Path(folder), f"{here}[cpu]")
        with _timed("first answer"):
            _try(installed, model)
        return _bill(installed)


def _state(given: argparse.Namespace, repository: str, began: str) -> None:
    """Write the statement of where the files come from, and their sums."""
    told = statement(
        sums_of(given.to),
        tag=given.tag,
        commit=commit_of(ROOT),
        repository=repository,
        builder=os.environ.get("GITHUB_WORKFLOW_REF", "make release-dry-run"),
        times=(began, _now()),
        packages={name: version_here(name) for name in _BUILDERS},
    )
    (given.to / PROVENANCE).write_text(json.dumps(told, indent=2) + "\n")
    write_sums(given.to)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def _build(tree: Path, to: Path, machines: list[str]) -> list[Path]:
    """Build the sdist and wheels of a tree in place of earlier ones; end if one is wrong."""
    to.mkdir(parents=True, exist_ok=True)
    for pattern in _MADE:
        for earlier in to.glob(pattern):
            earlier.unlink()
    commit = commit_of(ROOT)
    wheels = build_wheels(build_sdist(tree, to), to, machines, commit)
    if wrong := [each for wheel in wheels for each in wrong_with(wheel)]:
        sys.exit("\n".join(wrong))
    return wheels


def _build_images(tree: Path, targets: list[str], version: str, repository: str) -> None:
    """Build images of this machine's type, and end if one does not say its version."""
    if why := missing() if targets else "none was asked for":
        print(f"images: left out: {why}", flush=True)
        return
    about = {"VERSION": version, "REVISION": commit_of(ROOT), "SOURCE": repository or "unknown"}
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store") as store:
        for target in targets:
            with _timed(f"image {target}"):
                image = store.build(target, version, tree=tree, **about)
            words = ("chroot", image.root, "/opt/sax/bin/sax", "--version")
            told = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
            print(told, flush=True)
            native = target == "control" or "native, for" in told
            if not (native and told.startswith(f"sax {version}\n") and about["REVISION"] in told):
                sys.exit(f"the image {target} does not tell its version, commit and kernels")


def _try(installed: Environment, model: Path) -> None:
    versions = installed.versions()
    print(versions)
    if platform.machine() in MACHINES and "native, for" not in versions:
        sys.exit("the native kernels of the wheel do not run here")
    answer = installed.answer(model)
    print(answer)
    if "Paris" not in answer:
        sys.exit("the installed wheel does not answer")


def _bill(installed: Environment) -> str:
    """Return the packages of an environment, their versions, licences and hashes (CycloneDX)."""
    words = ("-m", "cyclonedx_py", "environment", "--output-format", "JSON", str(installed.python))
    done = subprocess.run((sys.executable, *words), check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def _fits(wheel: Path) -> bool:
    return wheel.name.endswith((f"_{platform.machine()}.whl", "-any.whl"))


def _today() -> str:
    return _now().partition("T")[0]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    whats = parser.add_subparsers(dest="what", required=True)
    for name in ("wheels", "rehearse", "cut", "notes"):
        what = whats.add_parser(name)
        if name != "wheels":
            what.add_argument("tag", metavar="TAG")
        if name in ("wheels", "rehearse"):
            what.add_argument("--to", type=Path, default=ROOT / "dist")
            what.add_argument("--machines", nargs="+", choices=MACHINES, default=[*MACHINES])
        if name == "rehearse":
            what.add_argument("--model", type=Path, required=True, help="the demo model's file")
            what.add_argument("--images", nargs="*", default=[], help="targets of the Dockerfile")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
