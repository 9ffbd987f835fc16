"""The commands `wait` and `watch`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sax.cli.connection import open_client
from sax.cli.waiting import wait_until_ready

Model = Annotated[str, typer.Argument(metavar="MODEL", help="/sax/<cell>/<model>")]


def wait(
    ctx: typer.Context,
    model: Model,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Ready replicas to wait for; all wanted by default.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after this long.")
    ] = None,
) -> None:
    """Wait until a model is ready.

    Shows what each replica is doing. Exits with 1 and the reason if it fails to load.

    \b
    Examples:
      sax wait /sax/test/smollm2
      sax wait /sax/test/smollm2 --replicas 2 --timeout 300
    """
    wait_until_ready(ctx, model, replicas=replicas, timeout_s=timeout)


def watch(
    ctx: typer.Context,
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value a line.")] = False,
) -> None:
    """Follow the ready replicas of a model.

    Prints their addresses as they come and go, until Ctrl-C.
    "Reset" means that the full set follows, "+ addr" one more, "- addr" one less.

    \b
    Examples:
      sax watch /sax/test/smollm2
      sax watch /sax/test/smollm2 --json
    """
    with open_client(ctx) as client:
        for event in client.watch(model):
            value = {"change": event.change.value, "address": event.address}
            print(json.dumps(value) if as_json else event, flush=True)
