"""The labels of a checkpoint's classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from sax.errors import CheckpointError

_MOST_LABELS = 100_000


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the labels in order: `id2label`, else two as in Hugging Face's models.

    Raises CheckpointError if they are not numbered from 0.
    """
    named = config.get("id2label")
    if named is None:
        count = config.get("num_labels", 2)
        if type(count) is not int or not 1 <= count <= _MOST_LABELS:
            raise CheckpointError(f"config.json has num_labels = {count!r}; give at least 1")
        return tuple(f"LABEL_{index}" for index in range(count))
    found = cast("dict[str, Any]", named) if isinstance(named, dict) else {}
    by_id = {str(key): label for key, label in found.items()}
    labels = [by_id.get(str(index)) for index in range(len(by_id))]
    if not labels or not all(isinstance(label, str) for label in labels):
        raise CheckpointError("config.json has an id2label that does not name labels 0, 1, 2, ...")
    return tuple(cast("list[str]", labels))
