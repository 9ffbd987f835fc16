"""Many model servers in this process: arithmetic behind the reconciler's own protocol.

A load takes as long as it is told to and is then in memory; a server that is asked to hold more
than it has fails the test that asked. Every status goes through the bytes of the wire, so that
reading them costs what it costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from admin_server.assignment.seen import Action, LoadAction, UnloadAction
from sax.proto import modelet_pb2
from sax.types import ModelSpec, Placement, ServableInfo, ServableStatus, ServerInfo, ServerStatus
from sax.wire.servers import decode_status, encode_status

GIB = 2**30
MEMORY = 96 * GIB
_PATHS = 40


def server_infos(count: int) -> list[ServerInfo]:
    """Servers alike, but for a tag of their own each and one in four that has `fast`."""
    return [
        ServerInfo(
            address=f"10.0.{number // 250}.{number % 250}:10001",
            # A tuple of its own for each, as decoding makes it.
            model_paths=tuple([f"pax.lm.params.lm_cloud.Model{path}" for path in range(_PATHS)]),
            tags=(f"host-{number}", *(["fast"] if number % 4 == 0 else [])),
            chip_type="h100",
            chip_topology="8",
            incarnation=f"start of {number}",
            memory_total=MEMORY,
        )
        for number in range(count)
    ]


def model_specs(count: int) -> list[ModelSpec]:
    """Models of one to five replicas (three on average) and 4 to 20 GiB, half of the room."""
    return [
        ModelSpec(
            model_id=f"/sax/test/model-{number:04}",
            model_path=f"pax.lm.params.lm_cloud.Model{number % _PATHS}",
            checkpoint=f"/checkpoints/{number}",
            replicas=1 + number % 5,
            version=f"{number + 1:032x}",
            placement=Placement(
                memory=(4 + number * 7 % 17) * GIB, tags=("fast",) if number % 10 == 0 else ()
            ),
        )
        for number in range(count)
    ]


class FakeFleet:
    """The model servers, as `Modelets` and as plain functions."""

    def __init__(self, infos: Iterable[ServerInfo], *, load_s: float = 0.0) -> None:
        self.infos = {info.address: info for info in infos}
        self.models: dict[str, dict[str, ServableInfo]] = {address: {} for address in self.infos}
        self.asked = 0  # how often GetStatus was answered
        self.loads = 0
        self._load_s = load_s
        self._encoded: dict[str, bytes] = {}

    async def status(self, address: str) -> ServerStatus:
        """As decoded from the wire."""
        self.asked += 1
        return self.status_now(address)

    async def carry_out(self, action: Action) -> None:
        """After the time that it takes."""
        self.begin(action)
        await asyncio.sleep(self._load_s)
        self.end(action)

    async def dispute(self, address: str, term: int) -> None:
        """Nobody here doubts the leader."""

    async def check(self, address: str, spec: ModelSpec) -> str:
        """Every spec can be loaded."""
        return ""

    async def close(self, address: str) -> None:
        """Nothing to hang up."""

    def status_now(self, address: str) -> ServerStatus:
        """As decoded from the wire."""
        if address not in self._encoded:
            held = tuple(self.models[address].values())
            used = sum(servable.memory for servable in held)
            status = ServerStatus(held, self.infos[address].incarnation, MEMORY, used)
            self._encoded[address] = encode_status(status).SerializeToString()
        message = modelet_pb2.GetStatusResponse.FromString(self._encoded[address])
        return decode_status(message)

    def begin(self, action: Action) -> None:
        """The call came in."""
        if isinstance(action, LoadAction):
            assert action.model_id not in self.models[action.address], "loaded twice"
            servable = ServableInfo(
                model_id=action.model_id,
                status=ServableStatus.LOADING,
                version=action.spec.version,
                memory=action.spec.placement.memory,
            )
            self._put(action.address, servable)

    def end(self, action: Action) -> None:
        """It is done."""
        if isinstance(action, UnloadAction):
            self.models[action.address].pop(action.model_id, None)
            self._encoded.pop(action.address, None)
            return
        self.loads += isinstance(action, LoadAction)
        held = self.models[action.address][action.model_id]
        methods = ("lm.generate", "lm.generate_stream", "lm.score")
        self._put(
            action.address,
            replace(held, status=ServableStatus.LOADED, methods=methods, acls=action.spec.acls),
        )

    def _put(self, address: str, servable: ServableInfo) -> None:
        models = self.models[address]
        models[servable.model_id] = servable
        used = sum(held.memory for held in models.values())
        assert used <= self.infos[address].memory_total, f"{address} is over its memory"
        self._encoded.pop(address, None)
