"""A copy of the tree without what git ignores, in which a release is cut and built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.tools.release.cutting import cut_changelog, cut_images, cut_project, version_in

_TAGGED = ("Dockerfile", "docs/**/*.md", "examples/**/*.sh", "k8s/**/*.yaml")


def copy_tree(source: Path, to: Path) -> Path:
    """Copy what git tracks, and new files that it does not ignore; returns `to`."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (source / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, to / name)
    return to


def commit_of(source: Path) -> str:
    """Return the commit of a tree, "-dirty" at its end if it has changes."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def cut(tree: Path, version: str, date: str, repository: str = "") -> None:
    """Write a version into a tree. Raises CannotCut before anything is written."""
    project, changelog = tree / "pyproject.toml", tree / "CHANGELOG.md"
    old = version_in(project.read_text())
    texts = {
        project: cut_project(project.read_text(), version, repository),
        changelog: cut_changelog(changelog.read_text(), version, date),
    }
    for pattern in _TAGGED:
        texts |= {each: cut_images(each.read_text(), old, version) for each in tree.glob(pattern)}
    for file, text in texts.items():
        if text != file.read_text():
            file.write_text(text)
