"""One look at a cluster: the objects of a cell, and what keeps those that are not ready.

Decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from admin_server.provisioning.cluster import KINDS, Cluster, NotServed, ObjectKind
from admin_server.provisioning.object_names import cell_labels
from admin_server.provisioning.pods import PODS, describe_pods, labels_of_pods
from admin_server.provisioning.present import Present, read_present
from sax.names import CellId

_LOOKED_INTO = 4  # objects whose pods are asked for in one look


async def look(cluster: Cluster, cell: CellId, needed: Collection[ObjectKind]) -> list[Present]:
    """All that this cell made. Raises ClusterTrouble, and NotServed for a kind that is needed."""
    found: list[Present] = []
    for kind in KINDS:
        try:
            bodies = await cluster.objects(kind, cell_labels(cell))
        except NotServed:
            if kind in needed:
                raise
            continue  # no template asks for it, and nothing of it was there
        read = (read_present(kind, body, cell) for body in bodies)
        found += [present for present in read if present is not None]
    return await _with_pods(cluster, found)


async def _with_pods(cluster: Cluster, found: Sequence[Present]) -> list[Present]:
    """What the pods of those that are not ready yet say, where we may see them."""
    told: dict[str, str] = {}
    waiting = [present for present in found if present.state == "waiting" and not present.held_up]
    for present in waiting[:_LOOKED_INTO]:
        try:
            pods = await cluster.objects(PODS, labels_of_pods(present.kind, present.name))
        except NotServed:
            break  # it is nice to know, and no right that we need
        told[present.uid] = describe_pods(pods, present.pods)
    return [replace(present, pods_told=told.get(present.uid, "")) for present in found]
