"""A bucket that a test may fill: its URL, and the environment that leads a process to it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

BUCKET = "sax-test"


@dataclass(frozen=True, slots=True)
class Place:
    """What an operator would write: `--fs_root` and the variables beside it."""

    url: str
    env: Mapping[str, str] = field(default_factory=dict)

    def fresh(self) -> Place:
        """An empty corner of the same bucket."""
        return replace(self, url=f"{self.url}/{uuid.uuid4().hex}")
