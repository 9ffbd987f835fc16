"""The adapter of a sequence, which all its rows name. Pure.

That of its request; or where the request names none and has media, the checkpoint's own for media
of their kind: of several kinds, that of the first encoder among the model's.
"""

from __future__ import annotations

from model_server.engine.part import EnginePart
from model_server.engine.request import EngineRequest
from model_server.engine.sequence import Sequence


class AdapterColumns(EnginePart[str]):
    """Keeps the salt of sequences whose adapter is the checkpoint's own."""

    def begin(self, sequence: Sequence) -> str | None:
        request = sequence.request
        own = 0 if request.adapter else self._own(request)
        if place := request.adapter or own:
            sequence.columns = sequence.columns._replace(adapter=place)
        return f"adapter {own} of its own:" if own else None

    def salt(self, sequence: Sequence) -> str:
        return self.of[sequence.id]

    def _own(self, request: EngineRequest) -> int:
        limits = self.limits.media
        if limits is None or not request.media:
            return 0
        return limits.encoders[min(span.encoder for span in request.media)].adapter
