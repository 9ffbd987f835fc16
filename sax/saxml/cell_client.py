"""Clients behind Saxml's calls: one per admin and process, as its functions have no client object
to own one."""

from __future__ import annotations

import functools

from sax.client import Client
from sax.client.location import admin_address
from sax.names import CellId, ModelId


def client_of(name: str) -> Client:
    """Return the client of the cell that a cell's or a model's name names."""
    cell = (CellId if name.count("/") == 2 else ModelId).parse(name).cell
    return client_at(admin_address(cell=cell))


@functools.cache
def client_at(address: str) -> Client:
    return Client(address)
