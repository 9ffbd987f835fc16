"""What a cell has been told to serve: published specs, and the records that change them.

Every function is pure: it takes a state and gives a record or another state. Knows nothing of
storage, servers, clocks or the wire; whoever calls brings the time and the new version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from sax import names
from sax.acl import parse_acl, parse_acls
from sax.errors import InvalidRequest, ModelExists, ModelNotFound, NotFound
from sax.types import ModelSpec

_MOST_REPLICAS = 1000  # every one of them is listed with its reason


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """A model was published."""

    spec: ModelSpec
    at_s: float  # seconds since the epoch


class Update(msgspec.Struct, frozen=True, tag="update"):
    """A published model was given this spec in place of the one before."""

    spec: ModelSpec
    at_s: float


class Unpublish(msgspec.Struct, frozen=True, tag="unpublish"):
    """A model was taken back."""

    model_id: str
    at_s: float


Record = Publish | Update | Unpublish


@dataclass(frozen=True, slots=True)
class CellState:
    """All that must survive a restart."""

    cell: str  # /sax/<cell>
    models: Mapping[str, ModelSpec] = field(default_factory=dict[str, ModelSpec])

    def find(self, model_id: str) -> ModelSpec:
        """The published spec. Raises InvalidName, NotFound or ModelNotFound with near names."""
        check_model_id(self, model_id)
        if model_id not in self.models:
            raise ModelNotFound(_missing(model_id, self.models), param="model")
        return self.models[model_id]


def apply(state: CellState, record: Record) -> CellState:
    """The state after the record. Total: a record in the log was checked when it was made."""
    models = dict(state.models)
    if isinstance(record, Unpublish):
        models.pop(record.model_id, None)
    else:
        models[record.spec.model_id] = record.spec
    return replace(state, models=models)


def model_of(record: Record) -> str:
    """The model a record is about."""
    return record.model_id if isinstance(record, Unpublish) else record.spec.model_id


def publish_record(state: CellState, spec: ModelSpec, *, version: str, at_s: float) -> Publish:
    """The record of a good publish. Raises InvalidRequest and its kin, or ModelExists."""
    check_model_id(state, spec.model_id)
    names.check_model_path(spec.model_path)
    _check_settings(spec)
    if spec.model_id in state.models:
        raise ModelExists(
            f"{spec.model_id} is published already: update it, or unpublish it first",
            param="model",
        )
    return Publish(replace(spec, version=version), at_s)


def update_record(state: CellState, spec: ModelSpec, *, version: str, at_s: float) -> Update | None:
    """The record of a good update, or None if it changes nothing.

    The spec replaces the stored one whole; an empty model path or checkpoint keeps the stored one.
    The version is new only where what servers load changes, never for replicas.
    """
    old = state.find(spec.model_id)
    new = replace(
        spec,
        model_path=spec.model_path or old.model_path,
        checkpoint=spec.checkpoint or old.checkpoint,
        version=old.version,
    )
    _check_settings(new)
    if new.model_path != old.model_path:
        raise InvalidRequest(
            f"the model path of {old.model_id} is {old.model_path} and cannot change: "
            "unpublish the model and publish it again",
            param="model_path",
        )
    if _loads(new) != _loads(old):
        return Update(replace(new, version=version), at_s)
    return None if new == old else Update(new, at_s)


def unpublish_record(state: CellState, model_id: str, *, at_s: float) -> Unpublish:
    """The record of a good unpublish. Raises ModelNotFound and its kin."""
    return Unpublish(state.find(model_id).model_id, at_s)


def check_model_id(state: CellState, model_id: str) -> None:
    """Raises InvalidName for a malformed name, NotFound for a name of another cell."""
    check_cell(state, str(names.ModelId.parse(model_id).cell_id))


def check_cell(state: CellState, cell: str) -> None:
    """Raises InvalidName for a malformed cell, NotFound for a cell that is not this one."""
    if str(names.CellId.parse(cell)) != state.cell:
        raise NotFound(
            f"this admin server is of cell {state.cell} and knows nothing of {cell}: "
            f"name a model of {state.cell}, or ask the admin server of {cell}",
            param="model",
        )


def encode_record(record: Record) -> bytes:
    """The record as JSON text."""
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> Record:
    """The record of a JSON text. Raises msgspec.DecodeError for any other text."""
    return msgspec.json.decode(data, type=Record)


def encode_state(state: CellState) -> bytes:
    """The whole state as JSON text."""
    return msgspec.json.encode(state)


def decode_state(data: bytes) -> CellState:
    """The state of a JSON text. Raises msgspec.DecodeError for any other text."""
    return msgspec.json.decode(data, type=CellState)


def _loads(spec: ModelSpec) -> tuple[str, dict[str, str]]:
    return spec.checkpoint, dict(spec.overrides)


def _check_settings(spec: ModelSpec) -> None:
    names.check_checkpoint(spec.checkpoint)
    if not 0 <= spec.replicas <= _MOST_REPLICAS:
        raise InvalidRequest(
            f"{spec.replicas} replicas: write 0 (published, but loaded nowhere) "
            f"to {_MOST_REPLICAS}",
            param="replicas",
        )
    for key, text in spec.overrides.items():
        _check_override(key, text)
    parse_acl(spec.admin_acl, "admin_acl")
    parse_acls(spec.acls, "acls")


def _check_override(key: str, text: str) -> None:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as exc:
        raise InvalidRequest(
            f"override {key}={text!r} is not JSON text ({exc}): write numbers and true or false "
            'bare, and strings in double quotes, as in "bfloat16"',
            param="overrides",
        ) from exc


def _missing(model_id: str, known: Iterable[str]) -> str:
    near = names.nearest(model_id, known)
    if near:
        return f"{model_id} is not published; near names: {', '.join(near)}"
    return f"{model_id} is not published: publish it first"
