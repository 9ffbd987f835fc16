"""The `k8s` command group: `doctor` inspects a live cluster; `render` is in `render_command`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k8s.render_command import render
from sax.command import PLAIN, CommandLine, CommandResult, fail, findings_result
from sax.errors import InvalidRequest, SaxError

if TYPE_CHECKING:
    from k8s.doctor.snapshot import ClusterNeeds, Snapshot

k8s = CommandLine(
    name="k8s",
    help="Render Kubernetes manifests, diagnose a cluster.",
    no_args_is_help=True,
    **PLAIN,
)
_BLIND = 2  # exit status: the cluster could not be inspected


def doctor(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the cell; default: kubectl's."),
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Kubeconfig context; default: the current one.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Default: $KUBECONFIG or ~/.kube/config.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="SLICE",
            help="Check node pools for this slice, e.g. v5e:4x8; default: for what is deployed.",
        ),
    ] = None,
    machine_type: Annotated[
        str | None, typer.Option(help="With --topology: machine type, as for `sax k8s render`.")
    ] = None,
    replicas: Annotated[int, typer.Option(help="With --topology: number of slices.")] = 1,
    flex_start: Annotated[
        bool, typer.Option("--flex-start", help="With --topology: on nodes of flex-start.")
    ] = False,
    uses: Annotated[
        list[str] | None,
        typer.Option(
            metavar="jobset|leaderworkerset|pathways|inference-gateway|kueue|keda",
            help="Also check that this is installed; repeatable.",
        ),
    ] = None,
) -> CommandResult:
    """Diagnose a live cluster: report problems and how to fix them, without changing anything.

    Checks the API server, the controllers and webhooks of the kinds in use, TPU node pools, quota,
    workload identity, images, queues, pods and their exit codes, the load balancer and the admin
    server.
    Reports and skips resources that you may not list. Needs: pip install lightkube. Exit status:
    0 no problems (warnings allowed), 1 problems found, 2 could not inspect the cluster.

    \b
    Examples:
      sax k8s doctor
      sax k8s doctor --topology v5e:4x8 --replicas 2     # before anything is deployed
      sax k8s doctor -n prod --context gke_my-project_us-west4_sax --json
      sax k8s doctor --uses leaderworkerset --uses kueue
    """
    try:
        wanted = _wanted(topology, machine_type, replicas, flex_start, uses or [])
        snapshot = _snapshot(kubeconfig, context, namespace)
    except SaxError as error:
        fail(error, _BLIND)
    from k8s.doctor.diagnosis import diagnose

    return findings_result(diagnose(snapshot, wanted))


def _wanted(
    topology: str | None,
    machine_type: str | None,
    replicas: int,
    flex_start: bool,
    uses: list[str],
) -> ClusterNeeds:
    from k8s.doctor.snapshot import USES, ClusterNeeds
    from sax.slices import slice_of

    if strange := [use for use in uses if use not in USES]:
        raise InvalidRequest(f"--uses {strange[0]!r}: choose from {', '.join(USES)}", param="uses")
    if replicas < 1:
        raise InvalidRequest(f"--replicas {replicas}: give 1 or more", param="replicas")
    if topology is None and machine_type is not None:
        raise InvalidRequest("--machine-type goes with --topology", param="machine_type")
    if topology is None and flex_start:
        raise InvalidRequest("--flex-start goes with --topology", param="flex_start")
    there = None if topology is None else slice_of(topology, machine_type)
    return ClusterNeeds(there=there, replicas=replicas, flex_start=flex_start, uses=tuple(uses))


def _snapshot(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Snapshot:
    from k8s.doctor.cluster import open_cluster
    from k8s.render.names import check_label

    if namespace is not None:
        check_label(namespace, "--namespace", "namespace")
    file = None if kubeconfig is None else str(kubeconfig)
    with open_cluster(file, context, namespace) as cluster:
        return cluster.look()


k8s.command()(render)
k8s.command()(doctor)


def register(app: typer.Typer) -> None:
    """Add the group to the command line (entry point of `sax.commands`)."""
    app.add_typer(k8s)
