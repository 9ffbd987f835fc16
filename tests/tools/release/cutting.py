"""A release as texts: its version from a tag, and what of the tree bears that version. Pure."""

from __future__ import annotations

import re

_TAG = re.compile(r"v?(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)")
_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_UNRELEASED = "## [Unreleased]\n"
_IMAGE = "sax-(?:control|admin-server|http|model-cpu|model-tpu|model-cuda|worker)"
_EXTRAS = "\n[project.optional-dependencies]\n"


class CannotCut(Exception):
    """What keeps a release from being made; the text says what to change."""


def version_of(tag: str) -> str:
    """Return the version that a tag names: "1.2.0rc1" of "v1.2.0rc1". Raises CannotCut."""
    if (found := _TAG.fullmatch(tag)) is None:
        raise CannotCut(f"the tag {tag!r} names no version: write v1.2.3, or v1.2.3rc1")
    return found[1]


def version_in(project: str) -> str:
    """Return the version in the text of pyproject.toml."""
    if (found := _VERSION.search(project)) is None:
        raise CannotCut("pyproject.toml has no line `version = ...`")
    return found[1]


def cut_project(project: str, version: str, repository: str = "") -> str:
    """Return pyproject.toml with this version, and with the addresses of its repository if given.

    repository: such as https://HOST/OWNER/NAME. The tree itself names none.
    """
    version_in(project)
    cut = _VERSION.sub(f'version = "{version}"', project, count=1)
    if not repository:
        return cut
    urls = {
        "Repository": repository,
        "Documentation": f"{repository}/blob/v{version}/docs/index.md",
        "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    lines = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    return cut.replace(_EXTRAS, f"\n[project.urls]\n{lines}{_EXTRAS}", 1)


def cut_changelog(changelog: str, version: str, date: str) -> str:
    """Return the changelog with what was unreleased under this version. Raises CannotCut."""
    if f"## [{version}]" in changelog:
        raise CannotCut(f"CHANGELOG.md has a section of {version} already")
    if not notes_of(changelog, "Unreleased"):
        raise CannotCut("CHANGELOG.md has nothing under [Unreleased]")
    return changelog.replace(_UNRELEASED, f"{_UNRELEASED}\n## [{version}] - {date}\n", 1)


def notes_of(changelog: str, version: str) -> str:
    """Return the section of a version without its heading; "" if it is empty or not there."""
    section = rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)"
    found = re.search(section, changelog, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def cut_images(text: str, old: str, new: str) -> str:
    """Return a manifest, page, Dockerfile or chart with the images' tags of another version."""
    tagged = re.sub(rf"\b({_IMAGE}):{re.escape(old)}(?![\w.])", rf"\g<1>:{new}", text)
    tagged = tagged.replace(f"ARG VERSION={old}\n", f"ARG VERSION={new}\n")
    of_chart = rf"^((?:appV|v)ersion: ){re.escape(old)}$"
    return re.sub(of_chart, rf"\g<1>{new}", tagged, flags=re.MULTILINE)
