"""Several answers to one question, as Saxml's LMService gives them.

Pure book-keeping over the deliveries of a connection whose request ids are 0 .. n-1. Knows nothing
of the wire.
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
    """One answer so far."""

    text: str = ""
    piece: str = ""  # what the last `add` brought
    score: float = 0.0


async def start_samples(connection: Connection, request: GenerateRequest, count: int) -> None:
    """Start `count` answers to one question, each with a seed of its own."""
    for index, seed in enumerate(sample_seeds(request.sampling.seed, count)):
        sampling = replace(request.sampling, seed=seed)
        await connection.start(index, replace(request, sampling=sampling))
    connection.end()


class Samples:
    """Collects the answers of one question."""

    def __init__(self, count: int) -> None:
        self.all = [Sample() for _ in range(count)]

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Take in what came. Raises the first error: one failed answer fails the question."""
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
        """By score; the first asked for wins a tie."""
        return sorted(self.all, key=lambda sample: -sample.score)
