"""Describe changes of a spec in words, for the notes of the audit log."""

from __future__ import annotations

from collections.abc import Mapping

from sax.types import Autoscaling, ModelSpec, Placement

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
