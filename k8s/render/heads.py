"""Renders the model servers that drive several slices through a Pathways proxy. Pure."""

from __future__ import annotations

import copy
from typing import Any

from k8s.render.arguments import arguments
from k8s.render.order import PATHWAYS_JOBSET, Order, SlicePlacement
from k8s.render.packaged import model_server_set
from k8s.render.pathways.component import PROXY, WORKER
from k8s.render.pathways.expansion import jobset_of
from k8s.render.pathways.job import pathways_job
from k8s.render.pathways.options import COLOCATED
from k8s.render.workload import template_of
from sax.names import ModelId

Object = dict[str, Any]
_INSTANCE, _NAME = "app.kubernetes.io/instance", "app.kubernetes.io/name"
_LIBTPU = "libtpu"  # a port that only processes with chips have
# As the images' own user. Of the container, not of the pod: Google's run there as root.
_PLAIN_USER = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001}
_RESOURCES = {"requests": {"cpu": "8", "memory": "32Gi"}}
_PLAINTEXT = {"name": "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "value": "true"}
_MAY_LOCK = "SYS_RESOURCE"


def pathways_servers(order: Order, placed: SlicePlacement, model_id: ModelId) -> list[Object]:
    """Return a PathwaysJob for each replica, or the JobSet that it becomes."""
    jobs = [_job(name, order, placed, model_id) for name in order.set_names]
    return [_plain(job, order, placed) for job in jobs] if order.kind == PATHWAYS_JOBSET else jobs


def _job(name: str, order: Order, placed: SlicePlacement, model_id: ModelId) -> Object:
    packaged = copy.deepcopy(model_server_set())
    labels = packaged["metadata"]["labels"] | {_NAME: order.name, _INSTANCE: order.name}
    head = template_of(packaged)
    container = head["spec"]["containers"][0]
    our_image = order.images.image(container["image"])
    _make_head(head, order)
    container["args"] = arguments(container["args"], name, order, placed.there, model_id)
    return pathways_job(
        {"name": name, "labels": labels},
        head,
        placed.there,
        order.pathways,
        directory=f"{order.bucket.url}/pathways",
        our_image=our_image,
        node_selector=order.capacity_labels,
    )


def _make_head(head: Object, order: Order) -> None:
    """Turn the pod of a TPU host into one without chips, a gang or need of root, in place."""
    head["metadata"]["labels"][_INSTANCE] = order.name
    pod = head["spec"]
    if order.pathways.deployment_mode != COLOCATED:  # beside workers it is on their tainted nodes
        del pod["tolerations"]
    del pod["securityContext"]["runAsUser"]
    order.images.apply(pod)
    container = pod["containers"][0]
    container["securityContext"] |= _PLAIN_USER
    # JAX_PLATFORMS=proxy and JAX_BACKEND_TARGET are put beside this by the controller.
    env = [each for each in container["env"] if each["name"] == "POD_IP"]
    is_plain = order.pathways.trusts_network and order.pathways.uses_our(PROXY)
    container["env"] = [*env, _PLAINTEXT] if is_plain else env
    container["resources"] = copy.deepcopy(_RESOURCES)
    container["ports"] = [each for each in container["ports"] if each["name"] != _LIBTPU]


def _plain(job: Object, order: Order, placed: SlicePlacement) -> Object:
    """Return the job's JobSet with what its controller drops or cannot say."""
    made = jobset_of(job)
    head, workers = (
        each["template"]["spec"]["template"] for each in made["spec"]["replicatedJobs"]
    )
    own = copy.deepcopy(job["spec"]["controller"]["template"]["metadata"])
    added = head.get("metadata", {}).get("annotations", {})
    head["metadata"] = own | {"annotations": own["annotations"] | added}
    pod = workers["spec"]
    pod["serviceAccountName"] = head["spec"]["serviceAccountName"]
    if order.pathways.uses_our(WORKER):
        pod["containers"][0]["securityContext"] = _with_chips(placed.there.generation.locks_memory)
    return made


def _with_chips(locks_memory: bool) -> Object:
    """Return the rights of our worker: the device files of a TPU belong to root alone."""
    rights = {"drop": ["ALL"], **({"add": [_MAY_LOCK]} if locks_memory else {})}
    return {"runAsUser": 0, "allowPrivilegeEscalation": False, "capabilities": rights}
