"""A loaded custom model: bytes in, bytes out, by method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from model_server.loading.loaded_batches import BatchRunner, LoadedBatches


class CustomRequest(NamedTuple):
    method: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCustom(LoadedBatches):
    """Every method has a queue of its name."""

    runner: BatchRunner[CustomRequest, bytes]

    @property
    def kind(self) -> str:
        return "a custom model"
