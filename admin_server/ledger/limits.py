"""Limits on the size of a spec and the range of its numbers. Pure.

Every spec is in every snapshot and in the memory of every admin server of the cell, and is sent to
everyone who lists: one bad client must not slow that down for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sax.errors import InvalidRequest
from sax.fields.table import (
    ACLS,
    CHECKPOINT_BYTES,
    MODEL_BYTES,
    MODEL_PATH_BYTES,
    MOST_REPLICAS,
    OVERRIDE_BYTES,
    OVERRIDES,
    SPEC_BYTES,
    TAG_BYTES,
    TAGS,
)
from sax.types import Autoscaling, ModelSpec, Placement, ServerInfo


def check_autoscaling(autoscaling: Autoscaling | None) -> None:
    if autoscaling is None:
        return
    least, most = autoscaling.min_replicas, autoscaling.max_replicas
    if least < 0:
        raise _refusal("min_replicas", f"{least}: use 0 (none while idle) or more")
    if most < 1:
        raise _refusal("max_replicas", f"{most}: use 1 or more")
    if most > MOST_REPLICAS:
        raise _refusal("max_replicas", f"{most}: a model can have at most {MOST_REPLICAS} replicas")
    if least > most:
        raise _refusal("min_replicas", f"{least} is above max_replicas {most}: use at most {most}")
    target = autoscaling.target_queue
    if not (math.isfinite(target) and target > 0):
        raise _refusal("target_queue", f"{target}: use a number above 0, such as 4")


def _refusal(field: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"{field} {text}", param=f"autoscaling.{field}")


_MOST_DEVICES = 1_000_000


def check_acl_size(acl: str) -> None:
    """Raises InvalidRequest for a list of too many bytes."""
    _check_bytes(acl, CHECKPOINT_BYTES, "admin_acl")


def check_limits(spec: ModelSpec) -> None:
    """Raises InvalidRequest naming the field that is too large or out of range."""
    _check_bytes(spec.model_id, MODEL_BYTES, "model")
    _check_bytes(spec.model_path, MODEL_PATH_BYTES, "model_path")
    _check_bytes(spec.checkpoint, CHECKPOINT_BYTES, "checkpoint")
    check_acl_size(spec.admin_acl)
    _check_map(spec.overrides, OVERRIDES, "overrides")
    _check_map(spec.acls, ACLS, "acls")
    _check_placement(spec.placement)
    if spec.autoscaling is not None:
        _check_autoscaling(spec.autoscaling)
    if spec.version and len(spec.version) != 32:
        raise InvalidRequest(
            f"a uuid of {len(spec.version) // 2} bytes is invalid: send 16 bytes or none",
            param="uuid",
        )
    size = _size(spec)
    if size > SPEC_BYTES:
        raise InvalidRequest(
            f"the whole spec has {size} bytes, more than {SPEC_BYTES}: move large values to "
            "the checkpoint",
            param="model",
        )


def check_server(info: ServerInfo) -> None:
    if not 0 <= info.devices <= _MOST_DEVICES:
        raise InvalidRequest(f"a server cannot have {info.devices} devices", param="devices")
    if info.memory_total < 0:
        raise InvalidRequest(
            f"a server cannot have {info.memory_total} bytes of memory", param="memory_total_bytes"
        )


def _check_bytes(text: str, most: int, param: str) -> None:
    size = len(text.encode())
    if size > most:
        start = text[:40]
        raise InvalidRequest(
            f"{param} has {size} bytes, more than {most}: {start!r}...", param=param
        )


def _check_map(items: Mapping[str, str], most: int, param: str) -> None:
    if len(items) > most:
        raise InvalidRequest(f"{len(items)} {param}: use at most {most}", param=param)
    for key, text in items.items():
        _check_bytes(key, CHECKPOINT_BYTES, param)
        _check_bytes(text, OVERRIDE_BYTES, param)


def _check_placement(place: Placement) -> None:
    if len(place.tags) > TAGS:
        raise InvalidRequest(f"{len(place.tags)} tags: use at most {TAGS}", param="placement.tags")
    for tag in place.tags:
        _check_bytes(tag, TAG_BYTES, "placement.tags")
    if not 0 <= place.devices <= _MOST_DEVICES:
        raise InvalidRequest(
            f"{place.devices} devices: use 1 or more, or 0 for any number",
            param="placement.devices",
        )
    if place.memory < 0:
        raise InvalidRequest(
            f"{place.memory} bytes of memory: give the bytes a server must have, or 0",
            param="placement.memory_bytes",
        )


def _check_autoscaling(scaling: Autoscaling) -> None:
    # JSON has no such number: the record could be written but never read again.
    if not math.isfinite(scaling.target_queue):
        raise InvalidRequest(
            f"target_queue {scaling.target_queue}: give the number of requests that may wait",
            param="autoscaling.target_queue",
        )


def _size(spec: ModelSpec) -> int:
    texts = [spec.model_id, spec.model_path, spec.checkpoint, spec.admin_acl, *spec.placement.tags]
    for items in (spec.overrides, spec.acls):
        texts += [*items.keys(), *items.values()]
    return sum(len(text.encode()) for text in texts)
