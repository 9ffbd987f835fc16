"""The `custom` command: sends bytes to a custom model and prints the bytes it returns."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sax.cli.terminal import open_client


def custom(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="/sax/<cell>/<model>")],
    request: Annotated[
        typer.FileBinaryRead | None,
        typer.Argument(metavar="FILE", help="Request body; - or none reads stdin."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Method to call.", show_default="custom, or the only one")
    ] = "",
) -> None:
    """Send bytes to a custom model.

    The response is written to stdout unchanged.

    \b
    Examples:
      echo '[1, 2, 3]' | sax custom /sax/test/scaler
      sax custom /sax/test/classifier cat.jpg --method label > answer.json
    """
    body = sys.stdin.buffer.read() if request is None else request.read()
    with open_client(ctx) as client:
        answer = client.custom(model, body, method)
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
