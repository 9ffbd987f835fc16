"""What a cluster does with JobSets and LeaderWorkerSets: a model server for each of them.

Plays the controllers, the nodes and the pods at once: looks at the API server many times a second,
starts a fake model server with the tags of the object's container, tells the object's status, and
ends the server when the object is deleted. Servers join whatever admin server has the port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc.aio

from sax.errors import SaxError
from sax.need import Need
from tests.admin_server.fake_modelet import FakeModelet
from tests.kubernetes_api import KubernetesApi

JOBSETS = "jobsets.jobset.x-k8s.io"
LEADER_WORKER_SETS = "leaderworkersets.leaderworkerset.x-k8s.io"


class FakeController:
    """`servers` by the object's name; `paused` keeps new ones from starting.

    `lingering` keeps those of objects that are gone; `beats` counts heartbeats.
    """

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.port = 0  # of the admin server
        self.paused = self.lingering = False
        self.beats = 0
        self.paths: tuple[str, ...] = ("llama",)
        self.need: Need | None = None  # of every load
        self.servers: dict[str, FakeModelet] = {}
        self.started: list[str] = []

    def holding(self, model_id: str) -> list[str]:
        """The objects whose server has the model loaded."""
        return sorted(name for name, server in self.servers.items() if server.holds(model_id))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(0.03)

    async def stop(self) -> None:
        """End every server."""
        for server in self.servers.values():
            await server.stop()

    async def _look(self) -> None:
        there: dict[str, dict[str, Any]] = {}
        for resource in (JOBSETS, LEADER_WORKER_SETS):
            for thing in self.api.objects(resource):
                meta = thing["metadata"]
                if "deletionTimestamp" in meta:
                    self.api.remove(resource, meta["name"])
                elif not (_has_failed(thing) or thing["spec"].get("suspend")):
                    there[meta["name"]] = thing
        for name in self.servers.keys() - there.keys():
            if self.lingering:
                await self._beat(self.servers[name])
            else:
                await self.servers.pop(name).stop()
        for name, thing in there.items():
            if name not in self.servers and not self.paused:
                server = FakeModelet(paths=self.paths, tags=_tags(thing), devices=_devices(thing))
                server.need = self.need
                self.servers[name] = await server.start()
                self.started.append(name)
            if name in self.servers:
                self._tell_ready(thing)
                await self._beat(self.servers[name])

    async def _beat(self, server: FakeModelet) -> None:
        with suppress(SaxError, grpc.aio.AioRpcError, TimeoutError):
            async with asyncio.timeout(1):
                await server.join(self.port)
        self.beats += 1

    def _tell_ready(self, thing: dict[str, Any]) -> None:
        resource, status = LEADER_WORKER_SETS, {"readyReplicas": 1}
        if thing["kind"] == "JobSet":
            jobs = [{"name": job["name"], "ready": 1} for job in thing["spec"]["replicatedJobs"]]
            resource, status = JOBSETS, {"replicatedJobsStatus": jobs}
        with suppress(KeyError):  # gone meanwhile
            if thing.get("status") != status:
                self.api.change(resource, thing["metadata"]["name"], {"status": status})


def _has_failed(thing: dict[str, Any]) -> bool:
    conditions = thing.get("status", {}).get("conditions", [])
    return any(each["type"] == "Failed" for each in conditions)


def _devices(thing: dict[str, Any]) -> int:
    """What the admin server takes them to be."""
    return int(thing["metadata"].get("annotations", {}).get("sax.dev/devices", 0))


def _tags(thing: dict[str, Any]) -> tuple[str, ...]:
    """Of its container, as the model server's own flag would be read."""
    spec = thing["spec"]
    if thing["kind"] == "JobSet":
        pod = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    else:
        pod = spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    flags = [arg for arg in pod["containers"][0]["args"] if arg.startswith("--tags=")]
    return tuple(flags[-1].removeprefix("--tags=").split(",")) if flags else ()


@asynccontextmanager
async def controlled(api: KubernetesApi) -> AsyncGenerator[FakeController]:
    """A controller at work."""
    controller = FakeController(api)
    work = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        work.cancel()
        await asyncio.wait([work])
        await controller.stop()
    if not work.cancelled():
        work.result()
