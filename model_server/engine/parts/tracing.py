"""When each chunk of a traced prompt was computed, told with its next token. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from model_server.engine.part import EnginePart
from model_server.engine.request import PromptChunk, SequenceUpdate
from model_server.engine.sequence import Committing, Sequence
from model_server.engine.types import Row, RowResult


class Tracing(EnginePart[list[PromptChunk]]):
    """Keeps the chunks since the last update."""

    def begin(self, sequence: Sequence) -> list[PromptChunk] | None:
        return [] if sequence.request.traced else None

    def commit(
        self, sequence: Sequence, row: Row, outcome: RowResult, committing: Committing
    ) -> bool:
        if row.tokens:
            chunk = PromptChunk(row.start, len(row.tokens), *committing.span)
            self.of[sequence.id].append(chunk)
        return False

    def tell(self, sequence: Sequence, update: SequenceUpdate) -> SequenceUpdate:
        chunks, self.of[sequence.id] = self.of[sequence.id], []
        return replace(update, chunks=tuple(chunks)) if chunks else update
