"""Manifest of a set of compiled programs: its contents, and what it was made for.

Human-readable JSON, written last, so a set without one was never finished.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import fields

from model_server.engine.limits import EngineLimits, WindowLimits
from model_server.engine.paging.window_pages import most_window_pages
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
    "guesses",
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
        alike = (self.weights, self.keys, flat(self.limits), self.sax, self.passes)
        alike += (self.draft,) if self.draft else ()
        digest = hashlib.sha256(msgspec.json.encode(alike, order="sorted")).hexdigest()[:12]
        return f"{re.sub('[^a-z0-9]+', '-', self.topology.lower())}-{digest}"

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.programs)


def encode(manifest: Manifest) -> bytes:
    text = msgspec.to_builtins(manifest) | {"limits": flat(manifest.limits)}
    return msgspec.json.format(msgspec.json.encode(text), indent=2) + b"\n"


def decode(body: bytes) -> Manifest:
    """Raises CheckpointError for what this version of sax cannot read."""
    try:
        version = msgspec.json.decode(body, type=_ManifestFormat).format
        if version != FORMAT:
            raise CheckpointError(f"it has format {version}, and this sax reads format {FORMAT}")
        text = msgspec.json.decode(body)
        return msgspec.convert(text | {"limits": _by_part(text.get("limits"))}, Manifest)
    except msgspec.MsgspecError as exc:
        raise CheckpointError(f"it is not a manifest of compiled programs: {exc}") from exc


def flat(limits: EngineLimits) -> Mapping[str, Any]:
    """Return the limits by name as sets of format 1 store them: all parts in one record."""
    windows = _named(limits.windows)
    return {name: each for name, each in _named(limits).items() if name != "windows"} | windows


def _named(record: msgspec.Struct) -> dict[str, Any]:
    return {each.encode_name: getattr(record, each.name) for each in fields(record)}


def _by_part(stored: Any) -> Any:
    if not isinstance(stored, dict):
        return stored
    apart = {each.encode_name for each in fields(WindowLimits)} & stored.keys()
    core = {name: each for name, each in stored.items() if name not in apart}
    return core | {"windows": {name: stored[name] for name in apart}}


def shape_differences(made: EngineLimits, here: EngineLimits) -> list[str]:
    """Describe differences in the limits that shape programs, other than pages."""
    wanted = flat(here)
    found = [
        f"made for {name} {each}, this server has {wanted[name]}"
        for name, each in flat(made).items()
        if name not in _OF_HOST and each != wanted[name]
    ]
    made_pages, own_pages = (most_window_pages(each) + each.draft_states for each in (made, here))
    if not found and made_pages != own_pages:  # draft tokens and the prefix cache change it
        found = [
            f"made for {made_pages} pages of layers with a window, this server has {own_pages}"
        ]
    return found


class _ManifestFormat(msgspec.Struct):
    format: int
