"""The PathwaysJob of one model server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k8s.render.pathways.options import PathwaysOptions
from sax.slices import TpuSlice

Object = dict[str, Any]
API_VERSION = "pathways-job.pathways.domain/v1"


def pathways_job(
    metadata: Object,
    head: Object,
    there: TpuSlice,
    options: PathwaysOptions,
    *,
    directory: str,
    our_image: str,
    node_selector: Mapping[str, str],
) -> Object:
    """Return the PathwaysJob whose controller runs `head` beside a resource manager and a proxy.

    metadata: with name and labels. head: pod template; its first container is the model server.
    directory: pathwaysDir where the options name none. our_image: of components that are ours.
    node_selector: labels of the workers' nodes, besides those in the options.
    """
    components = [
        each.manifest(our_image, trusts_network=options.trusts_network)
        for each in options.components
    ]
    spec = {
        "maxRestarts": options.max_restarts,
        "pathwaysDir": options.directory or directory,
        "pathwaysVersion": options.version,
        "workers": [_workers(there, options, node_selector)],
        "controller": _controller(head, options),
        "customComponents": components or None,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "PathwaysJob",
        "metadata": metadata,
        "spec": _present(spec),
    }


def _workers(there: TpuSlice, options: PathwaysOptions, selector: Mapping[str, str]) -> Object:
    found = {
        "type": there.machine.name,
        "topology": there.size,
        "numSlices": options.slices,
        "maxSliceRestarts": options.max_slice_restarts,
        "terminationGracePeriodSeconds": options.worker_grace_seconds,
        "priorityClassName": options.worker_priority_class,
        "nodeSelector": {**selector, **options.node_selector} or None,
    }
    return _present(found)


def _controller(head: Object, options: PathwaysOptions) -> Object:
    found = {
        "deploymentMode": options.deployment_mode,
        "mainContainerName": head["spec"]["containers"][0]["name"],
        "enableMetricsCollection": options.collects_metrics or None,
        "elasticSlices": options.elastic_slices or None,
        "template": head,
    }
    return _present(found)


def _present(fields: Object) -> Object:
    return {name: value for name, value in fields.items() if value is not None}
