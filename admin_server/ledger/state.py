"""The published state of a cell, and the records that change it.

Every function is pure: it takes a state and returns a record or another state. The caller supplies
the time, the new version and the principal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from admin_server.ledger import versions
from admin_server.ledger.limits import check_acl_size, check_autoscaling, check_limits
from admin_server.ledger.placement import check_placement, loaded_overrides
from admin_server.ledger.records import Grant, Lead, Publish, Record, Rollback, Unpublish, Update
from admin_server.ledger.versions import History, check_revision, completed
from sax import names
from sax.adapters import ADAPTER_PATH, BASE, base_of, parse_base
from sax.auth.acl import parse_acl, parse_acls
from sax.errors import InvalidRequest, ModelExists, ModelNotFound, NotFound
from sax.format import listing, quoted, shortened
from sax.overrides.saxml_overrides import read_saxml_overrides
from sax.overrides.value_rule import json_remedy
from sax.scaling import check_replicas
from sax.types import Autoscaling, ModelSpec, Placement, Version

_LONGEST = 200  # per value: a note summarizes, the record holds the full spec


def describe_publish(spec: ModelSpec) -> str:
    """llama from /models/a, 2 replicas"""
    count = "1 replica" if spec.replicas == 1 else f"{spec.replicas} replicas"
    parts = [f"{spec.model_path} from {_short(spec.checkpoint)}", count]
    parts += [f"{key}={_short(text)}" for key, text in sorted(spec.overrides.items())]
    if spec.autoscaling is not None:
        parts.append(f"autoscaling {_scaling(spec.autoscaling)}")
    return _short(", ".join(parts), 5 * _LONGEST)


def describe_change(old: ModelSpec, new: ModelSpec) -> str:
    """replicas 1 -> 3; checkpoint /a -> /b"""
    parts = [
        *_changed("replicas", str(old.replicas), str(new.replicas)),
        *_changed("checkpoint", old.checkpoint, new.checkpoint),
        *_overrides(old.overrides, new.overrides),
        *_changed("autoscaling", _scaling(old.autoscaling), _scaling(new.autoscaling)),
        *_changed("placement", _place(old.placement), _place(new.placement)),
    ]
    methods = sorted(_differing(old.acls, new.acls))
    if methods:
        parts.append(f"acls of {', '.join(methods)}")
    parts += _changed("admin acl", old.admin_acl or "none", new.admin_acl or "none")
    return _short("; ".join(parts), 5 * _LONGEST)


def _changed(name: str, old: str, new: str) -> list[str]:
    return [] if old == new else [f"{name} {_short(old)} -> {_short(new)}"]


def _overrides(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [
        f"{key} {_short(old.get(key, 'unset'))} -> {_short(new.get(key, 'unset'))}"
        for key in sorted(_differing(old, new))
    ]


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [key for key in {*old, *new} if old.get(key) != new.get(key)]


def _scaling(scaling: Autoscaling | None) -> str:
    if scaling is None:
        return "off"
    bounds = f"{scaling.min_replicas} to {scaling.max_replicas} replicas"
    return f"{bounds} at {scaling.target_queue:g} waiting"


def _place(place: Placement) -> str:
    parts = [f"tag {tag}" for tag in place.tags]
    parts += [f"{place.devices} devices"] if place.devices else []
    parts += [f"{place.memory} bytes"] if place.memory else []
    return " ".join(parts) or "anywhere"


def _short(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


@dataclass(frozen=True, slots=True)
class CellState:
    """Everything that must survive a restart."""

    cell: str  # /sax/<cell>
    models: Mapping[str, ModelSpec] = field(default_factory=dict[str, ModelSpec])
    term: int = 0  # of the newest leader; 0: none yet
    versions: Mapping[str, History] = field(default_factory=dict[str, History])  # oldest first
    admin_acl: str = ""  # who may do everything, beside --admin_acl

    def find(self, model_id: str) -> ModelSpec:
        """The published spec. Raises InvalidName, NotFound, or ModelNotFound with near names."""
        check_model_id(self, model_id)
        if model_id not in self.models:
            raise ModelNotFound(_missing(model_id, self.models), param="model")
        return self.models[model_id]


def apply(state: CellState, record: Record, sequence: int) -> CellState:
    """The state after this record. Total: a record was checked when it was made."""
    if isinstance(record, Lead):
        return replace(state, term=sequence)
    if isinstance(record, Grant):
        return replace(state, admin_acl=record.admin_acl)
    models, kept = dict(state.models), dict(state.versions)
    if isinstance(record, Unpublish):
        models.pop(record.model_id, None)
        kept.pop(record.model_id, None)
    elif isinstance(record, Rollback):
        if record.model_id in models:
            models[record.model_id] = _rolled_back(state, record, sequence)
    else:
        model_id, old = record.spec.model_id, models.get(record.spec.model_id)
        models[model_id] = replace(record.spec, revision=sequence)
        if old is None or old.version != record.spec.version:
            made = _version_made(record)
            kept[model_id] = versions.remember(kept.get(model_id, ()), old, made)
    return replace(state, models=models, versions=kept)


def publish_record(
    state: CellState, spec: ModelSpec, *, version: str, at_s: float, by: str = ""
) -> Publish:
    """Raises InvalidRequest and its subclasses, or ModelExists."""
    check_model_id(state, spec.model_id)
    names.check_model_path(spec.model_path)
    check_settings(spec)
    if spec.revision:
        raise InvalidRequest(
            f"a new model has no revision, but the spec has {spec.revision}: omit it",
            param="revision",
        )
    if spec.canary is not None:
        raise InvalidRequest(
            "a new model has no canary: publish it first, and then update it with one",
            param="canary",
        )
    if spec.model_id in state.models:
        raise ModelExists(
            f"{spec.model_id} is already published: update it, or unpublish it first",
            param="model",
        )
    _check_base(state, spec)
    return Publish(replace(spec, version=version), at_s, by, describe_publish(spec))


def update_record(
    state: CellState, spec: ModelSpec, *, version: str, at_s: float, by: str = ""
) -> Update | None:
    """Make the record of an update, or None if it changes nothing.

    The spec replaces the stored one as a whole; an empty model path or checkpoint keeps the stored
    one. The version only changes if what servers load changes, never for replicas. Raises
    StaleRevision for a spec made from a revision other than the stored one.
    """
    old = state.find(spec.model_id)
    check_revision(old, spec.revision)
    new = completed(spec, old)
    check_settings(new)
    if new.model_path != old.model_path:
        raise InvalidRequest(
            f"the model path of {old.model_id} is {old.model_path} and cannot change: "
            "unpublish the model and publish it again",
            param="model_path",
        )
    if new == old:
        return None
    _check_base(state, new)
    same = _loads(new) == _loads(old)
    if not same:
        _check_no_canary(old, "an update of what is loaded")
    note = describe_change(old, new)
    new = replace(new, revision=0, version=old.version if same else version)
    if not same:
        new = replace(new, promoted=0.0)
    return Update(new, at_s, by, note)


def rollback_record(
    state: CellState, model_id: str, version: str, *, at_s: float, by: str = ""
) -> Rollback | None:
    """Make the record of a rollback, or None if that version is already current.

    Without a version: to the one before the current. Replicas, ACLs, placement and autoscaling
    stay. Raises ModelNotFound, NotFound for an unknown version, InvalidRequest if there is none.
    """
    old = state.find(model_id)
    target = versions.go_back(state.versions.get(model_id, ()), old, version)
    if target.version == old.version:
        return None
    _check_no_canary(old, "a rollback")
    change = describe_change(old, _restored(old, target))
    note = f"from version {old.version} to {target.version}: {change}"
    return Rollback(model_id, target.version, at_s, by, note)


def unpublish_record(state: CellState, model_id: str, *, at_s: float, by: str = "") -> Unpublish:
    """Raises InvalidName, NotFound, ModelNotFound, InvalidRequest for the base of adapters."""
    spec = state.find(model_id)
    if adapters := [each for each, other in state.models.items() if base_of(other) == model_id]:
        raise InvalidRequest(
            f"{model_id} is the base of {listing(sorted(adapters))}: unpublish "
            f"{'it' if len(adapters) == 1 else 'them'} first",
            param="model",
        )
    return Unpublish(spec.model_id, at_s, by, f"was {describe_publish(spec)}")


def grant_record(state: CellState, acl: str, *, at_s: float, by: str = "") -> Grant | None:
    """Make the record of another list for the cell, or None if it is the same. Raises
    InvalidRequest."""
    check_acl_size(acl)
    parse_acl(acl, "admin_acl")
    if acl == state.admin_acl:
        return None
    return Grant(acl, at_s, by, f"admin acl {state.admin_acl or 'none'} -> {acl or 'none'}")


def check_settings(spec: ModelSpec) -> None:
    """Raises InvalidRequest or a subclass naming the field that is wrong."""
    check_limits(spec)
    names.check_checkpoint(spec.checkpoint)
    check_replicas(spec.replicas)
    check_autoscaling(spec.autoscaling)
    for key, text in spec.overrides.items():
        _check_override(key, text)
    read_saxml_overrides(spec.model_path, spec.overrides)
    check_placement(spec)
    parse_acl(spec.admin_acl, "admin_acl")
    parse_acls(spec.acls, "acls")


def check_model_id(state: CellState, model_id: str) -> None:
    """Raises InvalidName for a malformed name, NotFound for a name of another cell."""
    check_cell(state, str(names.ModelId.parse(model_id).cell_id))


def check_cell(state: CellState, cell: str) -> None:
    """Raises InvalidName for a malformed cell, NotFound for a cell other than this one."""
    if str(names.CellId.parse(cell)) != state.cell:
        raise NotFound(
            f"this admin server is for cell {state.cell}, not {cell}: "
            f"name a model of {state.cell}, or ask the admin server of {cell}",
            param="model",
        )


def encode_state(state: CellState) -> bytes:
    return msgspec.json.encode(state)


def decode_state(data: bytes) -> CellState:
    """Raises msgspec.DecodeError for anything but a state."""
    return msgspec.json.decode(data, type=CellState)


def _version_made(record: Publish | Update) -> Version:
    spec = record.spec
    return Version(
        version=spec.version,
        checkpoint=spec.checkpoint,
        overrides=spec.overrides,
        at_s=record.at_s,
        by=record.by,
    )


def _rolled_back(state: CellState, record: Rollback, sequence: int) -> ModelSpec:
    old = state.models[record.model_id]
    for version in state.versions.get(record.model_id, ()):
        if version.version == record.version:
            return replace(_restored(old, version), revision=sequence)
    return old


def _restored(spec: ModelSpec, version: Version) -> ModelSpec:
    """Everything that is not loaded stays as it is now."""
    return replace(
        spec,
        version=version.version,
        checkpoint=version.checkpoint,
        overrides=version.overrides,
        promoted=0.0,
    )


def _loads(spec: ModelSpec) -> tuple[str, dict[str, str]]:
    return spec.checkpoint, loaded_overrides(spec.overrides)


def _check_no_canary(spec: ModelSpec, what: str) -> None:
    if spec.canary is not None:
        raise InvalidRequest(
            f"{spec.model_id} has a canary of {spec.canary.checkpoint} at "
            f"{spec.canary.percent:g} %: `sax promote {spec.model_id}` or "
            f"`sax abort {spec.model_id}` before {what}",
            param="canary",
        )


def _check_base(state: CellState, spec: ModelSpec) -> None:
    """Raise InvalidRequest for an adapter whose BASE can never serve it."""
    if spec.model_path != ADAPTER_PATH:
        return
    base = parse_base(spec.overrides)
    known = state.models.get(base)
    if str(names.ModelId.parse(base).cell_id) != state.cell:
        why = f"it is in another cell than {spec.model_id}"
    elif base == spec.model_id or (known is not None and base_of(known)):
        why = "it is an adapter itself"
    else:
        return
    raise InvalidRequest(
        f"{BASE} is {base}: {why}; name a language model of {state.cell}", param=f"overrides.{BASE}"
    )


def _check_override(key: str, text: str) -> None:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        remedy = json_remedy(text)
        raise InvalidRequest(
            f"override {shortened(key)}={quoted(text)} is not JSON text ({exc}): {remedy}",
            param="overrides",
        ) from exc


def _missing(model_id: str, known: Iterable[str]) -> str:
    near = names.nearest(model_id, known)
    if near:
        return f"{model_id} is not published; near names: {', '.join(near)}"
    return f"{model_id} is not published: publish it first"
