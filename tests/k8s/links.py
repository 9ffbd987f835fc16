"""Do the objects of one rendering fit each other: selectors, ports, references.

Pure. `around` are objects that the rendering is applied beside, which it may refer to as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.k8s.finding import Finding, title_of
from tests.k8s.pods import Pod, pods_of
from tests.k8s.specs import containers, pod_specs

Json = Mapping[str, Any]
_BUILT_IN_PORTS = {"PodMonitor": "podMetricsEndpoints", "PodMonitoring": "endpoints"}


def check_links(objects: Sequence[Json], around: Sequence[Json] = ()) -> Iterator[Finding]:
    """Everything that must be there for these objects to work."""
    known = [*objects, *around]
    pods = pods_of(known)
    for each in objects:
        title, spec = title_of(dict(each)), each.get("spec") or {}
        match each["kind"]:
            case "Service":
                yield from _service(title, spec, pods)
            case "PodDisruptionBudget":
                yield from _some(title, pods, spec["selector"]["matchLabels"])
            case "PodMonitor" | "PodMonitoring":
                yield from _monitor(title, spec, _BUILT_IN_PORTS[each["kind"]], pods)
            case "InferencePool":
                yield from _pool(title, spec, pods, known)
            case "HorizontalPodAutoscaler" | "ScaledObject":
                yield from _there(title, spec["scaleTargetRef"], known)
            case "HTTPRoute":
                for reference in (ref for rule in spec["rules"] for ref in rule["backendRefs"]):
                    yield from _there(title, {"kind": "Service", **reference}, known)
            case "RoleBinding":
                for reference in (each["roleRef"], *each["subjects"]):
                    yield from _there(title, reference, known)
            case "LocalQueue":
                yield from _there(
                    title, {"kind": "ClusterQueue", "name": spec["clusterQueue"]}, known
                )
            case "ClusterQueue":
                yield from _queue(title, spec, known)
            case "AdmissionCheck":
                yield from _there(title, spec["parameters"], known)
        if queue := (each["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name"):
            yield from _there(title, {"kind": "LocalQueue", "name": queue}, known)
        yield from _pod_references(each, known)


def selected(pods: Sequence[Pod], labels: Mapping[str, str]) -> list[Pod]:
    """The pods that have all these labels."""
    return [pod for pod in pods if labels.items() <= pod.labels.items()]


def _some(title: str, pods: Sequence[Pod], labels: Mapping[str, str]) -> Iterator[Finding]:
    if not selected(pods, labels):
        yield Finding(title, f"no pod here has the labels {dict(labels)}")


def _service(title: str, spec: Json, pods: Sequence[Pod]) -> Iterator[Finding]:
    labels = spec.get("selector") or {}
    yield from _some(title, pods, labels)
    for pod in selected(pods, labels):
        named, numbers = _ports(pod)
        for port in spec.get("ports", ()):
            target = port.get("targetPort", port["port"])
            if target not in named | numbers:
                yield Finding(title, f"pod {pod.name} has no port {target}")


def _monitor(title: str, spec: Json, endpoints: str, pods: Sequence[Pod]) -> Iterator[Finding]:
    labels = spec["selector"]["matchLabels"]
    yield from _some(title, pods, labels)
    for pod in selected(pods, labels):
        for endpoint in spec[endpoints]:
            if endpoint["port"] not in _ports(pod)[0]:
                yield Finding(title, f"pod {pod.name} has no port {endpoint['port']}")


def _pool(title: str, spec: Json, pods: Sequence[Pod], known: Sequence[Json]) -> Iterator[Finding]:
    labels = spec["selector"]["matchLabels"]
    yield from _some(title, pods, labels)
    for pod in selected(pods, labels):
        if pod.index != 0:
            yield Finding(title, f"it selects {pod.name}, which is no primary")
        for port in spec["targetPorts"]:
            if port["number"] not in _ports(pod)[1]:
                yield Finding(title, f"pod {pod.name} has no port {port['number']}")
    yield from _there(title, {"kind": "Service", **spec["endpointPickerRef"]}, known)


def _queue(title: str, spec: Json, known: Sequence[Json]) -> Iterator[Finding]:
    flavors = (each for group in spec["resourceGroups"] for each in group["flavors"])
    for flavor in flavors:
        yield from _there(title, {"kind": "ResourceFlavor", "name": flavor["name"]}, known)
    for check in (spec.get("admissionChecksStrategy") or {}).get("admissionChecks", ()):
        yield from _there(title, {"kind": "AdmissionCheck", "name": check["name"]}, known)


def _there(title: str, reference: Json, known: Sequence[Json]) -> Iterator[Finding]:
    kind, name = reference["kind"], reference["name"]
    if not any(each["kind"] == kind and each["metadata"]["name"] == name for each in known):
        yield Finding(title, f"{kind}/{name} is not there")


def _ports(pod: Pod) -> tuple[set[Any], set[Any]]:
    ports = [port for each in containers(pod.spec) for port in each.get("ports", ())]
    return {port.get("name") for port in ports}, {port["containerPort"] for port in ports}


def _pod_references(each: Json, known: Sequence[Json]) -> Iterator[Finding]:
    """Accounts, claims, and what volumes are made of; variables are found by `pods_of`."""
    title = title_of(dict(each))
    for spec in pod_specs(each):
        if account := spec.get("serviceAccountName"):
            yield from _there(title, {"kind": "ServiceAccount", "name": account}, known)
        volumes = {volume["name"] for volume in spec.get("volumes", ())}
        for volume in spec.get("volumes", ()):
            for field, kind, key in (
                ("configMap", "ConfigMap", "name"),
                ("secret", "Secret", "secretName"),
                ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
            ):
                if field in volume:
                    yield from _there(title, {"kind": kind, "name": volume[field][key]}, known)
        for container in containers(spec):
            where = f"{title} {container['name']}"
            for mount in container.get("volumeMounts", ()):
                if mount["name"] not in volumes:
                    yield Finding(where, f"there is no volume {mount['name']}")
            yield from _probe_ports(where, container)


def _probe_ports(where: str, container: Json) -> Iterator[Finding]:
    ports = container.get("ports", ())
    known = {port.get("name") for port in ports} | {port["containerPort"] for port in ports}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(name) or {}
        for how in ("httpGet", "grpc", "tcpSocket"):
            if how in probe and probe[how]["port"] not in known:
                yield Finding(where, f"{name}: there is no port {probe[how]['port']}")
