"""Checks TPU nodes: which slices exist, are complete and usable. Pure.

On Kubernetes Engine a node pool of several hosts is one slice; in a pool of single hosts every
node is one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from k8s.doctor.snapshot import ClusterNeeds, Snapshot, is_ours
from k8s.render.fields import (
    Object,
    holds,
    is_set,
    label,
    name_of,
    parse_quantity,
    part,
    parts,
    pod_of,
    replicas_of,
    text,
)
from k8s.render.gcloud import node_pool_command
from k8s.render.order import FLEX_START
from sax.errors import InvalidRequest
from sax.finding import OK, PROBLEM, WARNING, Finding, some
from sax.slices import GENERATIONS, NODE_POOL_LABEL, TPU, TpuSlice, slice_of

_ABOUT = "nodes"
_TOLERATED = {TPU, "cloud.google.com/gke-spot", "cloud.google.com/gke-queued"}
_COMES_ASKED = "an autoscaled pool creates nodes only once pods wait for them"
_COMES_LATE = "they come when there is capacity, to a pool made with --flex-start"
_OF_ITS_STATE = "node.kubernetes.io/"  # taints that repeat the node's conditions


@dataclass(frozen=True, slots=True)
class WantedSlice:
    """A slice, on nodes of flex-start only or on any."""

    there: TpuSlice
    flex_start: bool = False

    @property
    def node_selector(self) -> Mapping[str, str]:
        flex_start = {FLEX_START: "true"} if self.flex_start else {}
        return {**self.there.node_selector, **flex_start}

    def __str__(self) -> str:
        return f"{self.there}{' of flex-start' if self.flex_start else ''}"


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    if not snapshot.knows("nodes"):
        return
    if not snapshot.of("nodes"):
        yield Finding(
            PROBLEM,
            _ABOUT,
            "the cluster has no nodes",
            "gcloud container node-pools create default --cluster=CLUSTER --location=LOCATION",
        )
        return
    slices = wanted_slices(snapshot, wanted)
    if not slices:
        yield Finding(
            OK,
            _ABOUT,
            f"{len(snapshot.of('nodes'))} nodes; no TPU slice is wanted "
            "(give --topology to check one)",
        )
    for want, replicas in slices.items():
        yield from _of_slice(want, replicas, snapshot)


def wanted_slices(snapshot: Snapshot, wanted: ClusterNeeds) -> Mapping[WantedSlice, int]:
    """Return the number of each slice wanted, by default what the deployed sets ask for."""
    if wanted.there is not None:
        return {WantedSlice(wanted.there, wanted.flex_start): wanted.replicas}
    slices: Counter[WantedSlice] = Counter()
    for thing in (*snapshot.of("jobsets"), *snapshot.of("leaderworkersets")):
        if is_ours(thing) and (there := _asked_by(thing)):
            flex_start = text(part(pod_of(thing), "nodeSelector"), FLEX_START) == "true"
            slices[WantedSlice(there, flex_start)] += replicas_of(thing)
    return slices


def _asked_by(thing: Object) -> TpuSlice | None:
    pod = pod_of(thing)
    selector = part(pod, "nodeSelector")
    accelerator = text(selector, "cloud.google.com/gke-tpu-accelerator")
    size = text(selector, "cloud.google.com/gke-tpu-topology")
    limits = [text(each, "resources", "limits", TPU) for each in parts(pod, "containers")]
    for each in GENERATIONS.values():
        for machine in each.machines:
            if each.accelerator == accelerator and str(machine.chips) in limits:
                try:
                    return slice_of(f"{each.chip}:{size}", machine.name)
                except InvalidRequest:  # no such slice: its pods are reported as pending
                    return None
    return None


def _of_slice(want: WantedSlice, replicas: int, snapshot: Snapshot) -> Iterator[Finding]:
    there, labels = want.there, want.node_selector
    matching = [
        node
        for node in snapshot.of("nodes")
        if all(label(node, key) == value for key, value in labels.items())
    ]
    if not matching:
        yield _none(want, replicas, snapshot)
        return
    usable = [node for node in matching if not _troubles(node, there)]
    for trouble, nodes in _by_trouble(matching, there).items():
        yield Finding(PROBLEM, _ABOUT, f"{some(nodes)}: {trouble}", _remedy(trouble, nodes[0]))
    pools = _pools(matching)
    if there.hosts > 1:
        yield from _incomplete(there, pools)
    complete = _complete(there, usable)
    yield _summary(want, replicas, complete, pools)


def _none(want: WantedSlice, replicas: int, snapshot: Snapshot) -> Finding:
    there = want.there
    told = " and ".join(f"{key}={value}" for key, value in want.node_selector.items())
    comes = any(text(event, "reason") == "TriggeredScaleUp" for event in snapshot.of("events"))
    if comes:
        return Finding(
            WARNING,
            _ABOUT,
            f"no node has {told} yet; the autoscaler is adding some",
            f"kubectl get events --field-selector reason=TriggeredScaleUp -n {snapshot.namespace}",
        )
    return Finding(
        WARNING if want.flex_start else PROBLEM,
        _ABOUT,
        f"no node has {told}: {replicas} x {there} of {there.hosts} {there.machine.name} "
        f"wanted ({_COMES_LATE if want.flex_start else _COMES_ASKED})",
        node_pool_command(there, "sax-0", flex_start=want.flex_start),
    )


def _by_trouble(nodes: Sequence[Object], there: TpuSlice) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for trouble in _troubles(node, there):
            found[trouble].append(name_of(node))
    return found


def _troubles(node: Object, there: TpuSlice) -> list[str]:
    found: list[str] = []
    if not holds(node, "Ready"):
        found.append("not ready")
    if is_set(node, "spec", "unschedulable"):
        found.append("cordoned")
    found += [
        f"taint {text(taint, 'key')}={text(taint, 'value')}:{text(taint, 'effect')}, which sax "
        "pods do not tolerate"
        for taint in parts(node, "spec", "taints")
        if _repels(taint)
    ]
    chips = int(parse_quantity(text(node, "status", "allocatable", TPU)) or 0)
    if chips == 0:
        found.append(f"offers no {TPU}")
    elif chips != there.chips_per_host:
        found.append(f"offers {chips} {TPU}, but a host of {there} needs {there.chips_per_host}")
    return found


def _repels(taint: Object) -> bool:
    key = text(taint, "key")
    if key in _TOLERATED or key.startswith(_OF_ITS_STATE):
        return False
    return text(taint, "effect") in ("NoSchedule", "NoExecute")


def _remedy(trouble: str, node: str) -> str:
    if trouble == "cordoned":
        return f"kubectl uncordon {node}"
    if trouble.startswith("taint"):
        key, effect = trouble.split()[1].split("=")[0], trouble.split(":")[1].split(",")[0]
        return f"kubectl taint node {node} {key}:{effect}-   (or add a toleration to the pods)"
    return f"kubectl describe node {node}"


def _pools(nodes: Sequence[Object]) -> Mapping[str, list[Object]]:
    pools: dict[str, list[Object]] = defaultdict(list)
    for node in nodes:
        pools[label(node, NODE_POOL_LABEL) or "(no pool)"].append(node)
    return pools


def _incomplete(there: TpuSlice, pools: Mapping[str, list[Object]]) -> Iterator[Finding]:
    for pool, nodes in pools.items():
        if len(nodes) != there.hosts:
            yield Finding(
                PROBLEM,
                _ABOUT,
                f"node pool {pool} has {len(nodes)} nodes, but {there} has {there.hosts} hosts",
                f"gcloud container node-pools describe {pool} --cluster=CLUSTER "
                "--location=LOCATION   (its status says why)",
            )


def _complete(there: TpuSlice, usable: Sequence[Object]) -> int:
    if there.hosts == 1:
        return len(usable)
    return sum(len(nodes) >= there.hosts for nodes in _pools(usable).values())


def _summary(
    want: WantedSlice, replicas: int, complete: int, pools: Mapping[str, list[Object]]
) -> Finding:
    told = f"{complete} usable {want} in node pools {some(sorted(pools))}, {replicas} wanted"
    if complete >= replicas:
        return Finding(OK, _ABOUT, told)
    taken = set(pools)
    name = next(name for i in range(len(taken) + 1) if (name := f"sax-{i}") not in taken)
    # Capacity that is lent comes when there is some.
    level = WARNING if want.flex_start else PROBLEM
    make = node_pool_command(want.there, name, flex_start=want.flex_start)
    return Finding(level, _ABOUT, told, make)
