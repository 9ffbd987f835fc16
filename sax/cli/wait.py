"""The `wait` and `watch` commands."""

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
        int | None, typer.Option(min=1, help="Ready replicas to wait for; default: all wanted.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after this long.")
    ] = None,
) -> None:
    """Wait until a model is ready.

    Shows what each replica is doing. If the model fails to load, prints why and exits with 1.

    \b
    Examples:
      sax wait /sax/test/smollm2
      sax wait /sax/test/smollm2 --replicas 2 --timeout 300
    """
    wait_until_ready(ctx, model, replicas=replicas, timeout_s=timeout)


def watch(
    ctx: typer.Context,
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value per line.")] = False,
) -> None:
    """Watch the ready replicas of a model.

    Prints their addresses as they come and go, until Ctrl-C.
    "Reset" means that the full set follows, "+ addr" adds a replica, "- addr" removes one.

    \b
    Examples:
      sax watch /sax/test/smollm2
      sax watch /sax/test/smollm2 --json
    """
    with open_client(ctx) as client:
        for event in client.watch(model):
            value = {"change": event.change.value, "address": event.address}
            print(json.dumps(value) if as_json else event, flush=True)
