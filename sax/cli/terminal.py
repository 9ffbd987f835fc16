"""Clients of the cell that the command line names.

gRPC is imported with the first of them: a command that asks no cell starts in half the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sax.client import AsyncClient, Client


def admin_of(ctx: typer.Context) -> str | None:
    """Return the address given with --admin or $SAX_ADMIN; None means the default."""
    admin: object = ctx.obj
    return admin if isinstance(admin, str) else None


def open_client(ctx: typer.Context) -> Client:
    return client_at(admin_of(ctx))


def client_at(admin: str | None) -> Client:
    """Return a client of the cell with this admin server; None: the one of the environment."""
    from sax.client import Client

    return Client(admin)


def async_client_at(admin: str | None) -> AsyncClient:
    """Return the asyncio client; call this inside the event loop."""
    from sax.client import AsyncClient

    return AsyncClient(admin)
