"""The models that a caller's key may use."""

from __future__ import annotations

from collections.abc import Iterable

from sax.auth.acl import caller
from sax.errors import PermissionDenied
from sax.types import Event, PublishedModel


def check_allowed(model_id: str) -> None:
    """Raise PermissionDenied if the caller's key may not use this model."""
    key = caller()
    if not key.limits.allows(model_id):
        raise PermissionDenied(
            f"the key {key.name} may not use {model_id}: it is limited to "
            f"{', '.join(key.limits.models)}; ask the operators of this cell for more",
            param="model",
        )


def visible(models: Iterable[PublishedModel]) -> tuple[PublishedModel, ...]:
    """Return those models that the caller's key may use."""
    limits = caller().limits
    if not limits.models:
        return tuple(models)
    return tuple(model for model in models if limits.allows(model.spec.model_id))


def visible_events(events: Iterable[Event]) -> list[Event]:
    """Return those events that concern models which the caller's key may use, or no model."""
    limits = caller().limits
    return [each for each in events if not each.model_id or limits.allows(each.model_id)]
