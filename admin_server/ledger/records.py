"""Records of a cell's log: what changed, when, by whom.

Stored records never change, so every field added later has a default.
"""

from __future__ import annotations

import msgspec

from sax.types import ModelSpec


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    spec: ModelSpec
    at_s: float  # seconds since the epoch
    by: str = ""  # the principal; "" without authentication
    note: str = ""  # what changed, for people


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Replaces the spec of a published model."""

    spec: ModelSpec
    at_s: float
    by: str = ""
    note: str = ""
    # canary, promote or abort; "": an update. No record of its own, so that an admin server from
    # before canaries reads the log, and serves the model without one.
    action: str = ""


class Rollback(msgspec.Struct, frozen=True, tag="rollback"):
    model_id: str
    version: str
    at_s: float
    by: str = ""
    note: str = ""


class Unpublish(msgspec.Struct, frozen=True, tag="unpublish"):
    model_id: str
    at_s: float
    by: str = ""
    note: str = ""


class Lead(msgspec.Struct, frozen=True, tag="lead"):
    """An admin server became the leader; this record's number is its term."""

    admin: str  # its id
    at_s: float
    by: str = ""  # its address
    note: str = ""


Record = Publish | Update | Rollback | Unpublish | Lead


def kind_of(record: Record) -> str:
    """publish, update, canary, promote, abort, rollback, unpublish or lead."""
    if isinstance(record, Update) and record.action:
        return record.action
    return type(record).__name__.lower()


def model_of(record: Record) -> str:
    """The model of the record, "" if none."""
    if isinstance(record, Lead):
        return ""
    return record.spec.model_id if isinstance(record, Publish | Update) else record.model_id


def version_of(record: Record) -> str:
    """The version the record makes current; "" if none."""
    if isinstance(record, Publish | Update):
        return record.spec.version
    return record.version if isinstance(record, Rollback) else ""


def encode_record(record: Record) -> bytes:
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> Record:
    """Raises msgspec.DecodeError for anything but a record."""
    return msgspec.json.decode(data, type=Record)
