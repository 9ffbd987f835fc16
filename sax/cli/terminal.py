"""Terminal output: the one place that chooses between plain and rich.

Plain (a pipe, a file, CI) means text and newlines only: no colours, cursor movement or wrapping.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sax.client import AsyncClient, Client
from sax.command import printable


def admin_of(ctx: typer.Context) -> str | None:
    """Return the address given with --admin or $SAX_ADMIN; None means the default."""
    admin: object = ctx.obj
    return admin if isinstance(admin, str) else None


def open_client(ctx: typer.Context) -> Client:
    return Client(admin_of(ctx))


def open_async_client(ctx: typer.Context) -> AsyncClient:
    """Open the asyncio client; call this inside the event loop."""
    return AsyncClient(admin_of(ctx))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns two spaces apart; the first row holds the headings."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout: rich on a terminal, aligned columns elsewhere."""
    clean = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print(aligned([headings, *clean]))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in clean:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
