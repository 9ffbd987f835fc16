"""The cell a command speaks to: `--admin`, else what `sax.config` finds."""

from __future__ import annotations

import typer

from sax.client import AsyncClient, Client


def admin_of(ctx: typer.Context) -> str | None:
    """The address given with --admin or $SAX_ADMIN, None for the default."""
    admin: object = ctx.obj
    return admin if isinstance(admin, str) else None


def open_client(ctx: typer.Context) -> Client:
    """A blocking client of the chosen cell."""
    return Client(admin_of(ctx))


def open_async_client(ctx: typer.Context) -> AsyncClient:
    """The same for asyncio; make it inside the loop."""
    return AsyncClient(admin_of(ctx))
