"""The `wait` and `watch` commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from sax.cli.model_argument import Model
from sax.cli.stages import failure, reason, replica_stages
from sax.cli.terminal import admin_of, async_client_at, open_client
from sax.command import CommandResult, Results, say
from sax.errors import DeadlineExceeded, LoadFailed
from sax.types import PublishedModel, ServableStatus

if TYPE_CHECKING:
    from sax.cli.display import Display
    from sax.client import AsyncClient

_LOOK_S = 0.2  # polling interval
_FAILED = "load failed: "  # with which the admin's reason begins


async def until_ready(
    client: AsyncClient,
    model_id: str,
    display: Display,
    *,
    replicas: int | None = None,
    timeout_s: float | None = None,
    settled: bool = False,
) -> PublishedModel:
    """Return once `replicas` replicas (None: all wanted) are ready.

    settled: and each of them has the version that it is to have.

    Raises LoadFailed with the reason as soon as a replica fails, or DeadlineExceeded after
    timeout_s with the reason why the model is not ready yet.
    """
    published: PublishedModel | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                published = await client.list(model_id)
                display.show(replica_stages(published))
                if enough(published, replicas) and (not settled or is_settled(published)):
                    return published
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        why = reason(published) if published else "the admin server did not respond"
        raise DeadlineExceeded(
            f"{model_id} is not ready after {timeout_s:g} s: {why or 'it is still loading'}"
        ) from None


def enough(published: PublishedModel, replicas: int | None) -> bool:
    """Return True if `replicas` replicas (None: all wanted) are ready.

    Raises LoadFailed if too few are and one has failed.
    """
    wanted = published.wanted_replicas if replicas is None else replicas
    if published.ready_replicas >= wanted:
        return True
    why = failure(published)
    if why is not None:
        name = published.spec.model_id
        raise LoadFailed(
            f"{name} failed to load: {why.removeprefix(_FAILED)}; `sax update {name} --checkpoint "
            f"PATH` gives it another checkpoint, `sax unpublish {name}` ends it"
        )
    return False


def is_settled(published: PublishedModel) -> bool:
    """Return True if the ready replicas are as wanted, those of a canary included."""
    loaded = [each for each in published.replicas if each.status is ServableStatus.LOADED]
    canary = any(each.canary for each in published.replicas)
    # The list may still be from before the change.
    return canary == (published.spec.canary is not None) and not any(e.reason for e in loaded)


def wait_until_ready(
    ctx: typer.Context,
    model: str,
    *,
    replicas: int | None = None,
    timeout_s: float | None = None,
    settled: bool = False,
) -> PublishedModel:
    from sax.cli.display import open_display

    async def go() -> PublishedModel:
        async with async_client_at(admin_of(ctx)) as client:
            with open_display() as display:
                published = await until_ready(
                    client,
                    model,
                    display,
                    replicas=replicas,
                    timeout_s=timeout_s,
                    settled=settled,
                )
        for note in published.notes:
            say(f"note: {note}")
        return published

    return asyncio.run(go())


def wait(
    ctx: typer.Context,
    model: Model,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Ready replicas to wait for; default: all wanted.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after this long.")
    ] = None,
) -> CommandResult:
    """Wait until a model is ready.

    Shows what each replica is doing. If the model fails to load, prints why and exits with 1.

    \b
    Examples:
      sax wait /sax/test/smollm2
      sax wait /sax/test/smollm2 --replicas 2 --timeout 300
    """
    ready = wait_until_ready(ctx, model, replicas=replicas, timeout_s=timeout)
    value = {"model": model, "ready_replicas": ready.ready_replicas, "notes": list(ready.notes)}
    return CommandResult(value, lambda: None)


def watch(ctx: typer.Context, model: Model) -> Results:
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
            yield CommandResult(value, str(event))
