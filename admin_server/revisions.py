"""Which state of a model an update was made from, and what it leaves as it was.

Pure. Knows nothing of records or of which changes are good.
"""

from __future__ import annotations

from dataclasses import replace

from sax.errors import InvalidRequest, StaleRevision
from sax.types import ANYWHERE, ModelSpec


def completed(spec: ModelSpec, old: ModelSpec) -> ModelSpec:
    """What an update asks for, with what it leaves open as it was."""
    spec = replace(
        spec,
        model_path=spec.model_path or old.model_path,
        checkpoint=spec.checkpoint or old.checkpoint,
        version=old.version,
    )
    if spec.revision:
        return spec
    # Saxml's clients know nothing of revisions, nor of these: they leave them out, and mean no
    # change. Whoever knows them sends the revision it has read.
    return replace(
        spec,
        revision=old.revision,
        autoscaling=spec.autoscaling or old.autoscaling,
        placement=old.placement if spec.placement == ANYWHERE else spec.placement,
    )


def check_revision(old: ModelSpec, revision: int) -> None:
    if revision < 0:
        raise InvalidRequest(
            f"revision {revision}: write the one that was read, or 0 for any", param="revision"
        )
    if revision not in (0, old.revision):
        raise StaleRevision(
            f"{old.model_id} is at revision {old.revision} now and this update was made from "
            f"revision {revision}: read it again and repeat the change",
            param="revision",
        )
