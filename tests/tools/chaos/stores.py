"""Where the cell keeps its state: SeaweedFS in a process of its own, or a folder.

Each admin server reaches SeaweedFS through a proxy of its own, so that one of them can be cut off
while the other is not. Nothing comes between a process and a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import free_ports
from tests.stores import seaweed
from tests.stores.fault_proxy import FaultProxy, fault_proxy
from tests.stores.moto import s3_environment
from tests.stores.place import BUCKET, Place
from tests.tools.chaos.child import Child

_UP_S = 90.0
KINDS = ("seaweedfs", "folder")


@dataclass
class Store:
    """The place as it is, and as each admin server sees it."""

    place: Place
    seen: list[Place]  # by admin server
    child: Child | None = None  # None: no process that could be killed
    proxies: list[FaultProxy] = field(default_factory=list[FaultProxy])
    url: str = ""

    async def until_up(self) -> None:
        """Until it answers; a hang is an error."""
        if self.child is not None:
            async with asyncio.timeout(_UP_S):
                while not await asyncio.to_thread(seaweed.is_up, self.url):
                    self.child.check()
                    await asyncio.sleep(0.1)


@asynccontextmanager
async def open_store(kind: str, folder: Path, admins: int) -> AsyncGenerator[Store]:
    """An empty store that answers."""
    if kind == "folder":
        place = Place((folder / "state").as_uri())
        yield Store(place, [place] * admins)
        return
    async with AsyncExitStack() as stack:
        store = await _start(folder, stack)
        for _ in range(admins):
            proxy = await stack.enter_async_context(fault_proxy(store.url))
            store.proxies.append(proxy)
            store.seen.append(proxy.before(store.place))
        yield store


async def _start(folder: Path, stack: AsyncExitStack) -> Store:
    here, ports = folder / "seaweedfs", free_ports(seaweed.PORTS)
    seaweed.prepare(here)
    child = Child("seaweedfs", seaweed.command(here, ports), folder, {})
    stack.callback(child.end)
    child.start()
    url = f"http://127.0.0.1:{ports[0]}"
    store = Store(Place(f"s3://{BUCKET}", s3_environment(url)), [], child, url=url)
    await store.until_up()
    await asyncio.to_thread(seaweed.make_bucket, url)
    return store
