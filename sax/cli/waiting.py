"""Waiting for a model to become ready, with every phase shown."""

from __future__ import annotations

import asyncio

import typer

from sax.cli.connection import open_async_client
from sax.cli.display import Display, open_display
from sax.cli.stages import failure, reason, replica_stages
from sax.client import AsyncClient
from sax.errors import DeadlineExceeded, LoadFailed
from sax.types import PublishedModel

_LOOK_S = 0.2  # polling interval


async def until_ready(
    client: AsyncClient,
    model_id: str,
    display: Display,
    *,
    replicas: int | None = None,
    timeout_s: float | None = None,
) -> PublishedModel:
    """Return once `replicas` replicas (None: all wanted) are ready.

    Raises LoadFailed with the reason as soon as a replica fails, or DeadlineExceeded after
    timeout_s with the reason why the model is not ready yet.
    """
    published: PublishedModel | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                published = await client.list(model_id)
                display.show(replica_stages(published))
                if enough(published, replicas):
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
        raise LoadFailed(f"{published.spec.model_id} failed to load: {why}")
    return False


def wait_until_ready(
    ctx: typer.Context,
    model: str,
    *,
    replicas: int | None = None,
    timeout_s: float | None = None,
) -> None:
    async def go() -> None:
        async with open_async_client(ctx) as client:
            with open_display() as display:
                await until_ready(client, model, display, replicas=replicas, timeout_s=timeout_s)

    asyncio.run(go())
