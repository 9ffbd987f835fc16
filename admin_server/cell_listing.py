"""The wire listing of a whole cell, built once and shared by callers for a moment.

Every gateway polls each second, and a cell of thousands takes a tenth of a second to describe. The
shared response is never older than an acknowledged change.
"""

from __future__ import annotations

from collections.abc import Callable

from admin_server.cell import Cell
from sax import codec
from sax.proto import admin_pb2

_FRESH_S = 0.25


class CellListing:
    """The last response and the state it was built from."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: tuple[str, int] | None = None  # cell id (new with each leader) and last record
        self._made_s = 0.0
        self._answer = admin_pb2.ListResponse()

    def answer(self, cell: Cell, name: str) -> admin_pb2.ListResponse:
        """All models and servers. Raises InvalidName, NotFound for another cell's name."""
        cell.check_name(name)
        now, of = self._clock(), (cell.id, cell.ledger.sequence)
        if self._of != of or now - self._made_s >= _FRESH_S:
            self._of, self._made_s, self._answer = of, now, _encode(cell)
        return self._answer


def _encode(cell: Cell) -> admin_pb2.ListResponse:
    return admin_pb2.ListResponse(
        published_models=map(codec.encode_published, cell.models()),
        servers=map(codec.encode_joined, cell.servers()),
    )
