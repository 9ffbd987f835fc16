"""The servers of each Kubernetes object, found by their tag `set:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from admin_server.assignment.plan import CellActions
from admin_server.assignment.seen import Seen, SeenServer
from admin_server.ledger.placement import reserved_for
from admin_server.ledger.state import CellState
from admin_server.provisioning.object_names import SET_TAG
from sax.types import ModelSpec, ServableStatus


@dataclass(frozen=True, slots=True)
class SetServers:
    """Combined state of the joined servers of one object."""

    addresses: tuple[str, ...] = ()
    idle: bool = True  # all have answered, hold nothing, and are assigned nothing
    unheard: bool = False  # one has not answered yet, and cannot hold earlier models
    refused: bool = False  # one lacked the memory for the published version
    serves: bool = False  # one has a model loaded

    def joined(self, other: SetServers) -> SetServers:
        return SetServers(
            self.addresses + other.addresses,
            self.idle and other.idle,
            self.unheard or other.unheard,
            self.refused or other.refused,
            self.serves or other.serves,
        )


NO_SERVERS = SetServers()


def servers_of_sets(state: CellState, plan: CellActions, seen: Seen) -> dict[str, SetServers]:
    """Servers by the name of their object."""
    assigned = {
        replica.address
        for report in plan.models.values()
        for replica in report.replicas
        if replica.address
    }
    found: dict[str, SetServers] = {}
    for address, server in sorted(seen.servers.items()):
        for name in _sets_of(server):
            one = _look(address, server, state, seen)
            if address in assigned:
                one = replace(one, idle=False)
            found[name] = found.get(name, NO_SERVERS).joined(one)
    return found


def _sets_of(server: SeenServer) -> list[str]:
    tags = server.joined.info.tags
    return [tag.removeprefix(SET_TAG) for tag in tags if tag.startswith(SET_TAG)]


def _look(address: str, server: SeenServer, state: CellState, seen: Seen) -> SetServers:
    statuses = [servable.status for servable in server.joined.servables]
    holds = any(status is not ServableStatus.NONE for status in statuses)
    models = reserved_for(server.joined.info.tags)
    return SetServers(
        addresses=(address,),
        idle=server.answered and not holds and not seen.under_way(address),
        unheard=not server.answered and not models & server.may_hold,
        refused=any(_was_refused(model_id, address, state.models, seen) for model_id in models),
        serves=ServableStatus.LOADED in statuses,
    )


def _was_refused(model_id: str, address: str, models: Mapping[str, ModelSpec], seen: Seen) -> bool:
    spec = models.get(model_id)
    return spec is not None and seen.model(model_id).refusal(address, spec) is not None
