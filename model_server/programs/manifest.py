"""Manifest of a set of compiled programs: its contents, and what it was made for.

Human-readable JSON, written last, so a set without one was never finished.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from model_server.engine.paging.near_count import most_near
from model_server.engine.types import EngineLimits
from model_server.programs.keys import Keys
from sax.errors import CheckpointError

FORMAT = 1
_OF_HOST = (  # may differ (pages), or affect no program (the rest)
    "pages",
    "queue",
    "max_running_per_account",
    "max_queued_per_account",
    "prefix_cache",  # a set has the program that copies pages, whether it is off or not
    "window",
    "draft_tokens",
)


class ProgramEntry(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # e.g. "2 decodes + 0 prompt blocks"
    text: str  # sha256 of the lowered text
    file: str
    size: int
    sha256: str  # of the file
    compile_s: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One set: a model on a topology, by one compiler."""

    format: int = FORMAT
    model: str  # as requested
    overrides: Mapping[str, str]
    topology: str  # as requested
    weights: str  # digest of their shapes, which identifies the model
    draft: str = ""  # the same of its draft model, and how many draft tokens it makes; empty: none
    keys: Keys
    limits: EngineLimits
    sax: str  # version and digest of the sources
    made_at: str
    made_by: str
    passes: tuple[str, ...] = ()  # names of programs that read whole inputs, beside the steps
    programs: tuple[ProgramEntry, ...] = ()

    @property
    def name(self) -> str:
        """Name of the set's folder: the same for everything that belongs in one set."""
        alike = (self.weights, self.keys, self.limits, self.sax, self.passes)
        alike += (self.draft,) if self.draft else ()
        digest = hashlib.sha256(msgspec.json.encode(alike, order="sorted")).hexdigest()[:12]
        return f"{re.sub('[^a-z0-9]+', '-', self.topology.lower())}-{digest}"

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.programs)


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(body: bytes) -> Manifest:
    """Raises CheckpointError for what this version of sax cannot read."""
    try:
        version = msgspec.json.decode(body, type=_ManifestFormat).format
        if version != FORMAT:
            raise CheckpointError(f"it has format {version}, and this sax reads format {FORMAT}")
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as exc:
        raise CheckpointError(f"it is not a manifest of compiled programs: {exc}") from exc


def shape_differences(made: EngineLimits, here: EngineLimits) -> list[str]:
    """Describe differences in the limits that shape programs, other than pages."""
    names = [name for name in made.__struct_fields__ if name not in _OF_HOST]
    found = [
        f"made for {name} {getattr(made, name)}, this server has {getattr(here, name)}"
        for name in names
        if getattr(made, name) != getattr(here, name)
    ]
    near, own = most_near(made), most_near(here)
    if not found and near != own:  # draft tokens and the prefix cache change it
        found = [f"made for {near} pages of layers with a window, this server has {own}"]
    return found


class _ManifestFormat(msgspec.Struct):
    format: int
