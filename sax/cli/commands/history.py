"""The `rollback`, `versions`, `events` and `logs` commands: what was changed, by whom, and what
servers logged."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from sax.cli.commands.wait import wait_until_ready
from sax.cli.model_argument import Model
from sax.cli.terminal import open_client
from sax.command import CommandResult, Results, Wait, aligned, show_table
from sax.errors import AdminUnavailable, InvalidRequest
from sax.flags.last_lines import LogLine
from sax.types import Event, Version

if TYPE_CHECKING:
    from sax.client import Client

_PAGE = 1000  # the most events that the admin returns per call
_LOOK_S = 1.0
_NEWS = 20  # rarely more per poll, and the admin keeps this many in memory
_EVENT_HEADINGS = ("NUMBER", "TIME", "WHO", "WHAT", "MODEL", "CHANGE")
_BEGUN = re.compile("[0-9a-f]{1,31}")
_VERSION_HEADINGS = ("VERSION", "MADE", "BY", "CHECKPOINT", "OVERRIDES")


def rollback(
    ctx: typer.Context,
    model: Model,
    version: Annotated[
        str,
        typer.Argument(
            metavar="[VERSION]",
            help="Version from `sax versions`, or its first characters; default: the previous one.",
        ),
    ] = "",
    wait: Wait = False,
) -> Results:
    """Roll a model back to an earlier version.

    Restores the checkpoint and the overrides; replica count and access lists stay as they are.
    A server that still holds the older version does not load it again.

    \b
    Examples:
      sax rollback /sax/test/smollm2 --wait
      sax rollback /sax/test/smollm2 0f3c2a4b
    """
    with open_client(ctx) as client:
        wanted = client.rollback(model, whole_version(client, model, version))
    value = {"model": model, "version": wanted}
    yield CommandResult(value, f"{model} rolls back to version {wanted}")
    if wait:
        wait_until_ready(ctx, model)


def versions(ctx: typer.Context, model: Model) -> CommandResult:
    """List the versions of a model, newest first.

    `sax rollback` can restore any of them; a * marks the current one.

    \b
    Examples:
      sax versions /sax/test/smollm2
      sax versions /sax/test/smollm2 --json
    """
    with open_client(ctx) as client:
        kept = client.versions(model)
    rows = [version_row(version) for version in kept]
    return CommandResult(
        msgspec.to_builtins(kept),
        lambda: show_table(_VERSION_HEADINGS, rows, ("OVERRIDES", "BY", "MADE")),
    )


def events(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="Only this model, published or not.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of events.")] = 20,
    before: Annotated[
        int, typer.Option(min=0, metavar="NUMBER", help="Only events before this number; 0: all.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new events until Ctrl-C.")
    ] = False,
) -> Results:
    """Show who changed what and when, newest first.

    With --follow the newest comes last; --follow --json prints one JSON value per line.

    \b
    Examples:
      sax events
      sax events /sax/test/smollm2 --limit 50
      sax events --before 120 --json
      sax events --follow
    """
    if follow and before:
        raise typer.BadParameter("--follow starts from the newest event: drop --before")
    if follow:
        return _followed(ctx, model, limit)
    with open_client(ctx) as client:
        told = pages(client, model, before, limit)
    rows = [event_row(event) for event in told]
    return CommandResult(
        [event_value(event) for event in told],
        (lambda: show_table(_EVENT_HEADINGS, rows, ("NUMBER", "WHO", "TIME")))
        if rows
        else "no changes yet",
    )


def _followed(ctx: typer.Context, model: str, limit: int) -> Results:
    with open_client(ctx) as client:
        for event in following(client, model, limit):
            yield CommandResult(event_value(event), _line(event))


def logs(
    ctx: typer.Context,
    server: Annotated[
        str,
        typer.Argument(
            metavar="[SERVER]",
            help="HOST:PORT of a model server, from `sax status`; default: the admin server.",
        ),
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")
    ] = False,
) -> Results:
    """Show the last lines that a server logged, newest last.

    Each server keeps its last 400 lines; of a model server that spans hosts it is the primary's
    log.

    \b
    Examples:
      sax logs
      sax logs 127.0.0.1:10001 --limit 200
      sax logs --follow
    """
    with open_client(ctx) as client:
        lines = client.log(server)[-limit:]
        if not follow:
            yield CommandResult(lines, "\n".join(map(log_text, lines)) or "no lines yet")
            return
        for line in following_log(client, server, lines):
            yield CommandResult(line, log_text(line))


def following_log(client: Client, server: str, lines: list[LogLine]) -> Iterator[LogLine]:
    """Yield lines, then each new one; survives restarts of the admin server."""
    last_s = 0.0
    while True:
        for line in lines:
            last_s = line["at_s"]
            yield line
        time.sleep(_LOOK_S)
        try:
            lines = [line for line in client.log(server) if line["at_s"] > last_s]
        except AdminUnavailable:
            lines = []


def log_text(line: LogLine) -> str:
    return f"{clock(line['at_s'])} {line['level']} {line['logger']}: {line['text']}"


def pages(client: Client, model: str, before: int, limit: int) -> list[Event]:
    """Return up to `limit` events, newest first, in as many calls as it takes."""
    told: list[Event] = []
    while len(told) < limit:
        want = min(_PAGE, limit - len(told))
        page = client.events(model, before=before, limit=want)
        told += page
        if len(page) < want:
            break
        before = page[-1].sequence
    return told


def following(client: Client, model: str, limit: int) -> Iterator[Event]:
    """Yield the last events, oldest first, then each new one; survives admin restarts."""
    told = list(reversed(pages(client, model, 0, limit)))
    last = 0
    while True:
        for event in told:
            last = event.sequence
            yield event
        time.sleep(_LOOK_S)
        try:
            told = _after(client, model, last)
        except AdminUnavailable:
            told = []


def _after(client: Client, model: str, last: int) -> list[Event]:
    told: list[Event] = []
    before, size = 0, _NEWS
    while True:
        page = client.events(model, before=before, limit=size)
        told += [event for event in page if event.sequence > last]
        if len(page) < size or page[-1].sequence <= last:
            return told[::-1]
        before, size = page[-1].sequence, _PAGE


def whole_version(client: Client, model: str, begun: str) -> str:
    """Complete a version prefix; unchanged if none matches. Raises InvalidRequest if several do."""
    if not _BEGUN.fullmatch(begun):
        return begun
    whole = [one.version for one in client.versions(model) if one.version.startswith(begun)]
    if len(whole) > 1:
        raise InvalidRequest(
            f"{begun} is ambiguous: {' or '.join(whole)}; give more characters", param="version"
        )
    return whole[0] if whole else begun


def event_row(event: Event) -> tuple[str, ...]:
    who = event.by or "-"
    return (str(event.sequence), clock(event.at_s), who, event.kind, event.model_id, event.text)


def version_row(version: Version) -> tuple[str, ...]:
    mark = "* " if version.current else "  "
    overrides = " ".join(f"{key}={text}" for key, text in sorted(version.overrides.items()))
    made = clock(version.at_s) if version.at_s else "-"
    return (mark + version.version, made, version.by or "-", version.checkpoint, overrides)


def event_value(event: Event) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(event)
    return value


def clock(seconds: float) -> str:
    """Format a Unix timestamp in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _line(event: Event) -> str:
    number, *rest = event_row(event)
    return aligned([(number.rjust(6), *rest)]).replace("\n", " ")
