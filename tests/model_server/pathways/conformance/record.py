"""A record, kept in `records/`, of the requests that one version of jaxlib sends and their answers.

One file per minor version, written by `report --record` where that version is installed.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "records"
CARRIED_OUT = "carried out"
VERSIONS = ("0.10", "0.11", "0.12")  # of pyproject.toml


class Spoken(msgspec.Struct, frozen=True):
    """Versions of one part of the protocol."""

    least: int  # that the client speaks
    most: int
    agreed: int


class Kind(msgspec.Struct, frozen=True):
    """One kind of request."""

    sent: bool  # by jax, in the test
    answer: str  # CARRIED_OUT, or the error in words


class ConformanceRecord(msgspec.Struct, frozen=True):
    """A client and a server of one version of jaxlib."""

    jaxlib: str
    protocol: Spoken
    serdes: Spoken
    kinds: dict[str, Kind]  # by the name of their field, in the order of the protocol


def minor(full: str) -> str:
    """Return the "0.10" of "0.10.2"."""
    return ".".join(full.split(".")[:2])


def installed() -> str:
    """Return the minor version of the jaxlib here."""
    return minor(version("jaxlib"))


def kept(of: str) -> ConformanceRecord | None:
    """Return the record of a minor version; None: there is none."""
    path = FOLDER / f"{of}.json"
    return msgspec.json.decode(path.read_bytes(), type=ConformanceRecord) if path.exists() else None


def keep(record: ConformanceRecord) -> None:
    """Write a record in the place of that of the same minor version."""
    FOLDER.mkdir(exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(record), indent=2)
    (FOLDER / f"{minor(record.jaxlib)}.json").write_bytes(text + b"\n")
