"""Options of `sax k8s render` that are fields of a PathwaysJob, with their help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sax.errors import InvalidRequest

if TYPE_CHECKING:
    from k8s.render.pathways.options import PathwaysOptions

Slices = Annotated[
    int,
    typer.Option(
        help="Pathways: slices that each model server drives, each with a copy of the model "
        "(numSlices)."
    ),
]
Directory = Annotated[
    str | None,
    typer.Option(
        metavar="gs://BUCKET/FOLDER",
        help="Pathways: where it keeps what it must not lose (pathwaysDir); default: pathways/ in "
        "--bucket.",
    ),
]
Version = Annotated[
    str | None,
    typer.Option(
        metavar="TAG",
        help="Pathways: tag of Google's images, which must speak the protocol of this jax "
        "(pathwaysVersion); default: latest.",
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(help="Pathways: restarts of everything, after the head is lost (maxRestarts)."),
]
ElasticSlices = Annotated[
    int,
    typer.Option(
        help="Pathways: how many slices may be missing while the others serve on (elasticSlices)."
    ),
]
MaxSliceRestarts = Annotated[
    int | None,
    typer.Option(
        help="Pathways: restarts of the workers of a slice, counted per host; with "
        "--elastic-slices (maxSliceRestarts); default: 1."
    ),
]
DeploymentMode = Annotated[
    str,
    typer.Option(
        metavar="default|colocate_head_with_workers",
        help="Pathways: the model server on a CPU node of its own (n2-standard-64: the pod "
        "requests 32 CPUs and 166 GB), or beside workers on a TPU host (deploymentMode).",
    ),
]
MetricsCollection = Annotated[
    bool,
    typer.Option(
        "--enable-metrics-collection",
        help="Pathways: --enable_metrics_collection for all its programs "
        "(enableMetricsCollection).",
    ),
]
WorkerGraceSeconds = Annotated[
    int | None,
    typer.Option(
        help="Pathways: time that workers have to end (terminationGracePeriodSeconds); default: 30."
    ),
]
WorkerPriorityClass = Annotated[
    str | None,
    typer.Option(help="Pathways: priority class of the workers, for Kueue (priorityClassName)."),
]
WorkerNodeSelector = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Pathways: label of the workers' nodes, e.g. cloud.google.com/reservation-name=NAME; "
        "repeatable (nodeSelector).",
    ),
]
OurComponents = Annotated[
    bool,
    typer.Option(
        "--our-components",
        help="Pathways: the model server's image, not Google's, for the resource manager, proxy "
        "and workers.",
    ),
]
TrustNetwork = Annotated[
    bool,
    typer.Option(
        "--trust-network",
        help="Pathways: start our components without certificates. Whoever reaches the nodes' "
        "ports can then run programs on the devices; without it they refuse to start.",
    ),
]
Components = Annotated[
    list[str] | None,
    typer.Option(
        "--component",
        metavar="KIND=IMAGE",
        help="Pathways: image of a component; KIND is pathways_server (the resource manager), "
        "worker, proxy_server or colocated_python_sidecar, and IMAGE may be sax: the model "
        "server's; repeatable (customComponents).",
    ),
]
ComponentFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--component-flag",
        metavar="KIND=--FLAG=VALUE",
        help="Pathways: a flag more for a component, e.g. worker=--xla_tpu_x=true; repeatable "
        "(customFlags).",
    ),
]
ComponentVariables = Annotated[
    list[str] | None,
    typer.Option(
        "--component-env",
        metavar="KIND=NAME=VALUE",
        help="Pathways: a variable more for a component; repeatable (customEnv).",
    ),
]


def pathways_options(given: Mapping[str, Any]) -> PathwaysOptions:
    """Return the options among a command's parameters. Raises InvalidRequest."""
    from k8s.render.pathways.component import parse_components
    from k8s.render.pathways.options import PathwaysOptions

    same = ("slices", "max_restarts", "elastic_slices", "max_slice_restarts", "deployment_mode")
    same += ("worker_grace_seconds", "worker_priority_class")
    return PathwaysOptions(
        directory=given["pathways_dir"],
        version=given["pathways_version"],
        trusts_network=given["trust_network"],
        collects_metrics=given["enable_metrics_collection"],
        node_selector=_labels(given["worker_node_selector"] or ()),
        components=parse_components(
            given["component"] or (),
            given["component_flag"] or (),
            given["component_env"] or (),
            are_ours=given["our_components"],
        ),
        **{name: given[name] for name in same},
    )


def _labels(words: Sequence[str]) -> dict[str, str]:
    found = [word.partition("=") for word in words]
    made = {key: value for key, _, value in found}
    if len(made) < len(found) or not all(equals for _, equals, _ in found):
        raise InvalidRequest(
            "--worker-node-selector: write KEY=VALUE, each KEY once", param="worker_node_selector"
        )
    return made
