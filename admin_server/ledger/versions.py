"""The versions of one model, oldest first, as a tuple of values. Pure.

A version names one checkpoint with one set of overrides, forever.
"""

from __future__ import annotations

from dataclasses import replace

from sax.errors import InvalidRequest, NotFound, StaleRevision
from sax.types import ANYWHERE, ModelSpec, Version


def completed(spec: ModelSpec, old: ModelSpec) -> ModelSpec:
    """The spec of an update, with omitted fields taken from the old one."""
    spec = replace(
        spec,
        model_path=spec.model_path or old.model_path,
        checkpoint=spec.checkpoint or old.checkpoint,
        version=old.version,
        canary=old.canary,
        aborted=old.aborted,
        promoted=old.promoted,
    )
    if spec.revision:
        return spec
    # Saxml's clients do not know these fields: they omit them and mean no change. Clients that
    # know them send the revision they have read.
    return replace(
        spec,
        revision=old.revision,
        autoscaling=spec.autoscaling or old.autoscaling,
        placement=old.placement if spec.placement == ANYWHERE else spec.placement,
    )


def check_revision(old: ModelSpec, revision: int) -> None:
    if revision < 0:
        raise InvalidRequest(
            f"revision {revision}: use the one that was read, or 0 for any", param="revision"
        )
    if revision not in (0, old.revision):
        raise StaleRevision(
            f"{old.model_id} is at revision {old.revision} now and this update was made from "
            f"revision {revision}: read it again and repeat the change",
            param="revision",
        )


KEPT = 10  # further than anyone goes back; every snapshot holds them all, with their overrides

History = tuple[Version, ...]


def remember(history: History, old: ModelSpec | None, made: Version) -> History:
    """Append a new version after the one that was current.

    After a rollback the current version is not the last: it moves up, so that the version before
    the new one is the one that served before it.
    """
    before = history if old is None else (*_without(history, old.version), of_spec(history, old))
    return (*_without(before, made.version), made)[-KEPT:]


def of_spec(history: History, spec: ModelSpec) -> Version:
    """The current version; logs from before versions were kept have only the spec."""
    known = next((one for one in history if one.version == spec.version), None)
    return known or Version(
        version=spec.version, checkpoint=spec.checkpoint, overrides=spec.overrides
    )


def listed(history: History, spec: ModelSpec) -> History:
    """Newest first, the current one marked."""
    whole = history if _has(history, spec.version) else (*history, of_spec(history, spec))
    return tuple(replace(one, current=one.version == spec.version) for one in reversed(whole))


def go_back(history: History, spec: ModelSpec, version: str) -> Version:
    """The version to restore: the one named, or without a name the one before the current.

    Raises NotFound for a version that is not kept, InvalidRequest if none precedes the current.
    """
    if version:
        return _named(history, spec, version)
    versions = [one.version for one in history]
    place = versions.index(spec.version) if spec.version in versions else 0
    if place == 0:
        later = f"; later ones are {', '.join(versions[1:])}" if len(versions) > 1 else ""
        raise InvalidRequest(
            f"{spec.model_id} has nothing to go back to: {spec.version} is the first version "
            f"kept{later}",
            param="version",
        )
    return history[place - 1]


def _named(history: History, spec: ModelSpec, version: str) -> Version:
    kept = listed(history, spec)
    for one in kept:
        if one.version == version:
            return one
    known = ", ".join(one.version + (" (current)" if one.current else "") for one in kept)
    raise NotFound(
        f"{spec.model_id} has no version {version}; the newest first, it has {known}",
        param="version",
    )


def _has(history: History, version: str) -> bool:
    return any(one.version == version for one in history)


def _without(history: History, version: str) -> History:
    return tuple(one for one in history if one.version != version)
