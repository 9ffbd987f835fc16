"""Output of `sax k8s render`: the objects, their YAML, and the comment that heads it.

The same order gives the same bytes. Only a YAML dumper writes values; no text is pasted in.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from k8s.render.bucket import MODEL_SERVER, folder_commands, impersonation_commands
from k8s.render.fields import pod_of
from k8s.render.gcloud import HEAD_NEEDS, LEAST, head_pool_command, kubectl, node_pool_command
from k8s.render.model_servers import model_servers
from k8s.render.order import PATHWAYS, Order, SlicePlacement
from k8s.render.packaged import control_plane
from k8s.render.pathways.component import PROGRAMS, WORKER
from k8s.render.pathways.options import DEFAULT
from k8s.render.publication import PublishCommand, publication_of
from sax.distribution import version
from sax.errors import Internal
from sax.format import on_one_line

_ADMIN_POLICY = "sax-admin-server"
_ACCOUNT = "iam.gke.io/gcp-service-account"


def control_plane_of(packaged: Iterable[Object], order: Order) -> list[Object]:
    """Return admin servers, gateways, their Services, and the objects all pods share.

    Raises Internal if the packaged manifests lack one of them.
    """
    made = [copy.deepcopy(each) for each in packaged]
    kinds = {each["kind"] for each in made}
    if missing := {"ConfigMap", "ServiceAccount", "Deployment"} - kinds:
        raise Internal(f"the packaged manifests have no {', '.join(sorted(missing))}")
    for each in made:
        if each["kind"] == "ConfigMap":
            each["data"] |= {"GSBUCKET": order.bucket.variable, "SAX_CELL": str(order.cell)}
        elif each["kind"] == "ServiceAccount":
            _identify(each, order.service_account_email)
        elif each["kind"] == "Deployment":
            order.images.apply(pod_of(each))
        elif each["kind"] == "NetworkPolicy" and order.is_pathways:
            _let_nodes_in(each)
    return made


def _let_nodes_in(policy: Object) -> None:
    """Let every address call the admin servers: heads are on the host's network.

    No policy can select a node's address (as in k8s/components/parts/nodes-may-call).
    """
    if policy["metadata"]["name"] == _ADMIN_POLICY:
        policy["spec"]["ingress"][0].pop("from", None)


def put_in(namespace: str, objects: Iterable[Object]) -> None:
    for each in objects:
        each["metadata"]["namespace"] = namespace
        for subject in each.get("subjects", ()):
            if subject["kind"] == "ServiceAccount":
                subject["namespace"] = namespace


def _identify(account: Object, email: str | None) -> None:
    """Let a ServiceAccount act as a Google service account; None: as itself."""
    if email is not None:
        account["metadata"].setdefault("annotations", {})[_ACCOUNT] = email


Object = dict[str, Any]
CONTROL_FILE, SERVERS_FILE, LIST_FILE = (
    "control.yaml",
    "model-servers.yaml",
    "kustomization.yaml",
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """Manifests of an order."""

    heading: str  # comment lines
    control: tuple[Object, ...]
    servers: tuple[Object, ...]

    @property
    def objects(self) -> tuple[Object, ...]:
        return self.control + self.servers

    def as_text(self) -> str:
        return self.heading + _dump(self.objects)

    def as_files(self) -> dict[str, str]:
        parts = {CONTROL_FILE: self.control, SERVERS_FILE: self.servers}
        files = {name: self.heading + _dump(part) for name, part in parts.items() if part}
        listing = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": sorted(files),
        }
        return {**files, LIST_FILE: self.heading + _dump([listing])}


def render(order: Order, placed: SlicePlacement, command: str) -> Rendered:
    """Render an order given with `command`. Raises InvalidRequest."""
    order.check_slice(placed.there)
    published = publication_of(order, placed.planned)
    control = control_plane_of(control_plane(), order) if order.part != "servers" else []
    servers: list[Object] = []
    if order.part != "control":
        servers = model_servers(order, placed, published.model_id)
    if order.namespace is not None:
        put_in(order.namespace, [*control, *servers])
    heading = _heading(order, placed, published, command)
    return Rendered(heading, tuple(control), tuple(servers))


def _dump(objects: Sequence[Object]) -> str:
    import yaml  # slow to import, and most commands do not need it

    return "".join("---\n" + yaml.safe_dump(each, sort_keys=False, width=100) for each in objects)


def _heading(order: Order, placed: SlicePlacement, published: PublishCommand, command: str) -> str:
    lines = [
        f"Made by sax {version()}:",
        f"  {command}",
        "",
        *_what(order, placed),
        "",
        *_steps(order, placed, published),
    ]
    # No text can end a comment early.
    return "".join(f"# {on_one_line(line)}".rstrip() + "\n" for line in lines)


def _what(order: Order, placed: SlicePlacement) -> list[str]:
    there = placed.there
    if order.part == "control":
        return [f"The control plane of {order.cell}, with its state in {order.bucket.url}."]
    replicas = "one replica" if order.replicas == 1 else f"{order.replicas} replicas"
    hosts = "one host" if there.hosts == 1 else f"{there.hosts} hosts"
    chips = "one chip" if there.chips_per_host == 1 else f"{there.chips_per_host} chips"
    slices = order.pathways.slices
    where = f"{there}: " if slices == 1 else f"{slices} slices {there}, each of them "
    lines = [
        f"{replicas.capitalize()} of {order.model} in {order.cell}, each on {where}{hosts} of "
        f"{there.machine.name} with {chips}."
    ]
    if order.kind == "one-jobset" and order.replicas > 1:
        lines.append("They are one JobSet, as in Google's tutorial: a lost host restarts them all.")
    if placed.planned is None:
        lines.append(
            "Not planned (--no-plan): the model may not fit this slice. Check with `sax plan`."
        )
        return lines
    lines.append(f"Planned: {placed.planned}.")
    if placed.planned.hosts != there.hosts:
        lines.append(f"(The plan divides the slice into {placed.planned.hosts} hosts.)")
    return lines


def _steps(order: Order, placed: SlicePlacement, published: PublishCommand) -> list[str]:
    lines = [*_before(order, placed), "Apply it:"]
    if order.namespace:
        lines.append(f"  {kubectl('create', 'namespace', order.namespace)}")
    lines.append("  kubectl apply --server-side -f THIS_FILE      # a folder of it: -k FOLDER")
    if order.images.registry is None:
        lines.append(
            "  (The images name no registry: load them on the nodes or give --image-registry.)"
        )
    if order.part == "control":
        return lines
    if published.is_upload:
        lines.append(f"Copy the checkpoint of {order.model} to {published.checkpoint}, then")
    return [
        *lines,
        "Publish the model, with the CLI or over HTTP:",
        f"  {published.command}",
        f"  LB_IP=$({_address(order)})",
        f"  {published.curl}",
    ]


def _address(order: Order) -> str:
    path = "jsonpath='{.status.loadBalancer.ingress[*].ip}'"
    return f"{kubectl('get', 'svc', 'sax-http-lb', namespace=order.namespace)} -o {path}"


def _before(order: Order, placed: SlicePlacement) -> list[str]:
    lines: list[str] = []
    if order.part != "control":
        pools = "a node pool" if order.replicas * order.pathways.slices == 1 else "node pools"
        lines.append(f"Needs the {_controllers(order)} with its webhooks, and {pools}, e.g.")
        pool = f"{order.name}-0"[:40].rstrip("-")
        lines.append(
            "  "
            + node_pool_command(placed.there, pool, flex_start=order.flex_start, spot=order.spot)
        )
        lines += _before_pathways(order)
    if order.part == "servers":
        return lines
    return [*lines, *_rights(order)]


def _controllers(order: Order) -> str:
    jobset = f"JobSet controller ({LEAST['jobset']} or newer)"
    if order.kind == PATHWAYS:
        return f"PathwaysJob controller, and the {jobset}"
    if order.kind == "leaderworkerset":
        return f"LeaderWorkerSet controller ({LEAST['lws']} or newer)"
    return jobset


def _before_pathways(order: Order) -> list[str]:
    if not order.is_pathways:
        return []
    options = order.pathways
    lines: list[str] = []
    if options.deployment_mode == DEFAULT:
        heads = "each head" if order.replicas > 1 else "the head"
        lines.append(f"A CPU node of its own for {heads}, whose pod requests {HEAD_NEEDS}, e.g.")
        lines.append(f"  {head_pool_command(f'{order.name}-head'[:40], order.replicas)}")
    if order.kind == PATHWAYS:
        lines.append(
            f"Its workers run as the service account {order.namespace or 'default'}/default, which "
            "must be allowed to use the bucket as well."
        )
    if {each.kind for each in options.components if each.image} < set(PROGRAMS):
        lines.append("Needs access to Google's Pathways images (preview).")
    if any(each.is_ours for each in options.components):
        lines.append(_on_trust(options.trusts_network))
    if order.kind == PATHWAYS and options.uses_our(WORKER):
        lines.append(
            "The controller starts workers as the user of their image, and the device files of "
            "TPUs may belong to root: docs/how_to/kubernetes.md (Pathways) has an image for that."
        )
    return lines


def _on_trust(trusts_network: bool) -> str:
    if trusts_network:
        return (
            "Whoever reaches ports 29000 to 29006 of these nodes can run programs on the devices "
            "(--trust-network): close them with a firewall."
        )
    return "Our Pathways programs need certificates (--component-flag), or --trust-network."


def _rights(order: Order) -> list[str]:
    if order.bucket.credentials:
        return [f"The pods need credentials for {order.bucket.url}: {order.bucket.credentials}."]
    where = order.namespace or "default"
    if email := order.service_account_email:
        lines = impersonation_commands(email, where)
        told = "Needs permission to act as this account, which has the rights of all roles, e.g."
    else:
        told = "Needs permission to use its folders of the bucket, e.g."
        lines = folder_commands(order.bucket, where, _pathways_accounts(order))
    return [told, *(f"  {line}" for line in lines)]


def _pathways_accounts(order: Order) -> tuple[str, ...]:
    """Return the accounts of Pathways' programs, which keep their own in the bucket."""
    if not order.is_pathways or order.pathways.directory:
        return ()
    return (MODEL_SERVER, "default") if order.kind == PATHWAYS else (MODEL_SERVER,)
