"""Explain why a replica has no server, and what would help.

Works on kinds of servers, so that explaining a full cell costs no more than filling an empty one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from admin_server.assignment.fleet import Fleet, Needs, Node, NodeKind
from admin_server.ledger.placement import MODEL_TAG, ServerDemand, devices_of
from sax.format import count, describe_paths, human_bytes, listing
from sax.need import Need
from sax.types import ModelSpec


def why_short(
    spec: ModelSpec, demand: ServerDemand, fleet: Fleet, needs: Needs, chosen: Collection[str]
) -> str:
    """Why the model has no server beyond those chosen."""
    if not fleet.nodes:
        return "no model server has joined this cell"
    on_path = [kind for kind in fleet.open_to(spec.model_id) if demand.path in kind.paths]
    if not on_path and fleet.is_served(demand.path):
        return (
            f"every joined server that serves {spec.model_path} is reserved for other models by "
            f"a {MODEL_TAG}NAME tag"
        )
    if not on_path:
        return (
            f"no joined server serves {spec.model_path}; they serve {describe_paths(fleet.paths)}"
        )
    with_tags = [kind for kind in on_path if kind.tags.issuperset(demand.tags)]
    if not with_tags:
        return _no_tags(spec, demand, on_path)
    able = fleet.able(demand)
    if not able:
        need = needs.learned(spec)
        if need is not None and need.devices >= demand.devices:
            return _too_small(demand, need, with_tags)
        return _no_devices(demand, with_tags)
    if len(chosen) == sum(len(kind.nodes) for kind in able):
        return _no_more_servers(spec, demand, len(chosen))
    return _no_memory(spec, able, chosen, needs)


def why_no_base(spec: ModelSpec, base: str, ready: int, *, published: bool) -> str:
    """Why an adapter has no further server: it goes where its base is loaded."""
    if not published:
        return f"its base {base} is not published"
    if not ready:
        return f"its base {base} is not loaded on any server yet"
    if ready < spec.replicas:
        return (
            f"{spec.replicas} replicas are wanted, but its base {base} is loaded on only "
            f"{count(ready, 'server')}"
        )
    return f"no server with its base {base} meets its placement"


def _no_tags(spec: ModelSpec, demand: ServerDemand, kinds: list[NodeKind]) -> str:
    nearest = max(
        kinds, key=lambda kind: (len(kind.tags), -len(kind.nodes), next(iter(kind.nodes)))
    )
    nearby = next(iter(nearest.nodes))
    missing = [tag for tag in demand.tags if tag not in nearest.tags]
    tags = f"the tag{'s' if len(demand.tags) > 1 else ''} {', '.join(demand.tags)}"
    if len(missing) == len(demand.tags):
        tagged = sorted({t for k in kinds for r in k.nodes.values() for t in r.server.info.tags})
        have = f"have the tags {listing(tagged)}" if tagged else "have no tags"
        return f"no server has {tags}; those that serve {spec.model_path} {have}"
    return f"no server has {tags}; the nearest, {nearby}, lacks {', '.join(missing)}"


def _no_devices(demand: ServerDemand, kinds: list[NodeKind]) -> str:
    largest = max(kind.devices for kind in kinds)
    silent = sum(len(kind.nodes) for kind in kinds if not kind.devices)
    tagged = f" with the tags {', '.join(demand.tags)}" if demand.tags else ""
    reason = f"needs {count(demand.devices, 'device')} in one slice; "
    if not largest:
        return f"{reason}no server{tagged} reports how many it has"
    reason += f"the largest free server{tagged} has {largest}"
    return f"{reason}; {count(silent, 'server')} did not report theirs" if silent else reason


def _too_small(demand: ServerDemand, need: Need, kinds: list[NodeKind]) -> str:
    """No server has the devices that a server which refused the model reported as needed."""
    servers = [node.server.info for kind in kinds for node in kind.nodes.values()]
    largest = max(servers, key=lambda info: (devices_of(info), info.memory_total))
    silent = sum(not devices_of(info) for info in servers)
    tagged = f" with the tags {', '.join(demand.tags)}" if demand.tags else ""
    if not (devices := devices_of(largest)):
        return f"{_needs(need)}; no server{tagged} reports how many devices it has"
    reason = f"{_needs(need)}; the largest server{tagged} has {count(devices, 'device')}"
    if each := largest.memory_total // devices:
        reason += f" with {human_bytes(each, 1)}{' each' if devices > 1 else ''}"
    return f"{reason}; {count(silent, 'server')} did not report theirs" if silent else reason


def _needs(need: Need) -> str:
    if need.devices < 2:
        return f"needs {human_bytes(need.memory, 1)} of memory"
    return (
        f"needs {count(need.devices, 'device')} with {human_bytes(need.memory_each, 1)} each "
        f"({human_bytes(need.memory, 1)} in all)"
    )


def _no_more_servers(spec: ModelSpec, demand: ServerDemand, able: int) -> str:
    one = able == 1
    have = "has" if one else "have"
    verbs = [f"{'serves' if one else 'serve'} {spec.model_path}"]
    verbs += [f"{have} the tags {', '.join(demand.tags)}"] if demand.tags else []
    verbs += [f"{have} {count(demand.devices, 'device')}"] if demand.devices else []
    return (
        f"{spec.replicas} replicas are wanted, one per server, but only "
        f"{able} joined server{'' if one else 's'} {' and '.join(verbs)}"
    )


def _no_memory(spec: ModelSpec, able: list[NodeKind], chosen: Collection[str], needs: Needs) -> str:
    nodes = [(node, kind) for kind in able if (node := kind.roomiest(chosen)) is not None]
    best, kind = max(nodes, key=lambda pair: (pair[0].free, pair[0].address))
    learned = needs.learned(spec) or Need()
    need = max(needs.of(spec, kind.devices) or 0, learned.memory)
    return (
        f"{_needs(replace(learned, memory=need))}; the server with the most free memory, "
        f"{best.address}, has {human_bytes(best.free, 1)} of "
        f"{human_bytes(best.server.info.memory_total, 1)} free{_beside(best)}"
    )


def _beside(node: Node) -> str:
    order = sorted(node.models, key=lambda model_id: (-node.models[model_id], model_id))
    return f" beside {listing(order)}" if order else ""
