"""Samples of one request, as Saxml's LMService returns them.

Pure book-keeping over the deliveries of a connection whose request ids are 0 .. n-1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from model_server.connection import Connection, Delivery
from model_server.submission import sample_seeds
from sax.errors import SaxError
from sax.types import GenerateRequest


@dataclass(slots=True)
class Sample:
    """One sample so far."""

    text: str = ""
    piece: str = ""  # text from the last `add`
    score: float = 0.0


async def start_samples(connection: Connection, request: GenerateRequest, count: int) -> None:
    """Start `count` requests for one prompt, each with its own seed."""
    for index, seed in enumerate(sample_seeds(request.sampling.seed, count)):
        sampling = replace(request.sampling, seed=seed)
        await connection.start(index, replace(request, sampling=sampling))
    connection.end()


class Samples:
    """Collects the samples of one request."""

    def __init__(self, count: int) -> None:
        self.all = [Sample() for _ in range(count)]

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Add new deliveries. Raises the first error: one failed sample fails the request."""
        for sample in self.all:
            sample.text += sample.piece
            sample.piece = ""
        for delivery in deliveries:
            if isinstance(delivery.chunk, SaxError):
                raise delivery.chunk
            sample = self.all[delivery.id]
            sample.piece += delivery.chunk.text
            sample.score = delivery.chunk.score

    def best_first(self) -> list[Sample]:
        """Sort by score; on a tie, the lower request id comes first."""
        return sorted(self.all, key=lambda sample: -sample.score)
