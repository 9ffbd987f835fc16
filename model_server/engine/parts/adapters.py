"""The adapter of a request, which all rows of its sequence name. Pure."""

from __future__ import annotations

from model_server.engine.part import EnginePart
from model_server.engine.sequence import Sequence


class AdapterColumns(EnginePart[None]):
    def begin(self, sequence: Sequence) -> None:
        place = sequence.request.adapter
        if place:
            sequence.columns = sequence.columns._replace(adapter=place)
