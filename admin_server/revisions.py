"""Revision checks for updates, and the fields that an update leaves unchanged. Pure."""

from __future__ import annotations

from dataclasses import replace

from sax.errors import InvalidRequest, StaleRevision
from sax.types import ANYWHERE, ModelSpec


def completed(spec: ModelSpec, old: ModelSpec) -> ModelSpec:
    """The spec of an update, with omitted fields taken from the old one."""
    spec = replace(
        spec,
        model_path=spec.model_path or old.model_path,
        checkpoint=spec.checkpoint or old.checkpoint,
        version=old.version,
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
