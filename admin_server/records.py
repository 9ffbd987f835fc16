"""The records of a cell's log: what changed, when, by whom.

A record in the log is never changed, so every field that came later has a default. Knows nothing
of what a record does to the state.
"""

from __future__ import annotations

import msgspec

from sax.types import ModelSpec


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """A model was published."""

    spec: ModelSpec
    at_s: float  # seconds since the epoch
    by: str = ""  # who asked; "" where nobody proves who they are
    note: str = ""  # what changed, in words


class Update(msgspec.Struct, frozen=True, tag="update"):
    """A published model was given this spec in place of the one before."""

    spec: ModelSpec
    at_s: float
    by: str = ""
    note: str = ""


class Rollback(msgspec.Struct, frozen=True, tag="rollback"):
    """A published model went back to what this version loads."""

    model_id: str
    version: str
    at_s: float
    by: str = ""
    note: str = ""


class Unpublish(msgspec.Struct, frozen=True, tag="unpublish"):
    """A model was taken back."""

    model_id: str
    at_s: float
    by: str = ""
    note: str = ""


Record = Publish | Update | Rollback | Unpublish


def kind_of(record: Record) -> str:
    """The name an auditor reads: publish, update, rollback, unpublish."""
    return type(record).__name__.lower()


def model_of(record: Record) -> str:
    """The model a record is about."""
    return record.spec.model_id if isinstance(record, Publish | Update) else record.model_id


def version_of(record: Record) -> str:
    """The version that the record makes current; "" where there is none any more."""
    if isinstance(record, Publish | Update):
        return record.spec.version
    return record.version if isinstance(record, Rollback) else ""


def encode_record(record: Record) -> bytes:
    """The record as JSON text."""
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> Record:
    """The record of a JSON text. Raises msgspec.DecodeError for any other text."""
    return msgspec.json.decode(data, type=Record)
