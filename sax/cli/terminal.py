"""Clients of the cell that the command line names."""

from __future__ import annotations

import typer

from sax.client import AsyncClient, Client


def admin_of(ctx: typer.Context) -> str | None:
    """Return the address given with --admin or $SAX_ADMIN; None means the default."""
    admin: object = ctx.obj
    return admin if isinstance(admin, str) else None


def open_client(ctx: typer.Context) -> Client:
    return Client(admin_of(ctx))


def open_async_client(ctx: typer.Context) -> AsyncClient:
    """Open the asyncio client; call this inside the event loop."""
    return AsyncClient(admin_of(ctx))
