"""Names of checkpoints that model servers fetch from a Hugging Face hub.

hf://org/name[@revision][:file.gguf]    or org/name, where no such path exists
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from sax.errors import InvalidName
from sax.format import quoted

HUB = "hf://"
_WORD = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_FILE = r"(?::(?P<file>[\w.+\-/]+))?"
_REVISION = r"(?:@(?P<revision>[\w.+\-/]+))?"
_REPOSITORY = re.compile(rf"(?P<repo>{_WORD}(?:/{_WORD})?){_REVISION}{_FILE}", re.ASCII)
_BARE = re.compile(rf"(?P<repo>{_WORD}/{_WORD}){_REVISION}{_FILE}", re.ASCII)
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
        file = f":{self.file}" if self.file else ""
        return f"{HUB}{self.repo}{revision}{file}"

    @property
    def pinned(self) -> bool:
        """True if the revision is a commit, which never changes."""
        return bool(_COMMIT.fullmatch(self.revision))


def parse_reference(text: str) -> HubReference | None:
    """Return what the text refers to; None if it is a path, or a URL of another scheme.

    Raises InvalidName for hf:// with anything else behind it.
    """
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
