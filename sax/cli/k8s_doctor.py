"""The command `k8s doctor`: looks at a live cluster and prints what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sax.cli.terminal import printable, say
from sax.errors import InvalidRequest, SaxError

if TYPE_CHECKING:
    from sax.kubernetes.doctor.finding import Finding
    from sax.kubernetes.doctor.snapshot import Snapshot, Wanted

_WELL, _PROBLEMS, _BLIND = 0, 1, 2
_SIGNS = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


def doctor(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Of the cell; left out: kubectl's own.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Of the kubeconfig; left out: the current one.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Left out: $KUBECONFIG or ~/.kube/config.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="SLICE",
            help="Whether there are node pools for v5e:4x8; left out: for what is deployed.",
        ),
    ] = None,
    machine_type: Annotated[
        str | None, typer.Option(help="With --topology, as `sax k8s render` takes it.")
    ] = None,
    replicas: Annotated[int, typer.Option(help="How many slices of it.")] = 1,
    uses: Annotated[
        list[str] | None,
        typer.Option(
            metavar="jobset|leaderworkerset|pathways|inference-gateway|kueue|keda",
            help="What else must be installed; repeatable.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Look at a live cluster and say what is wrong and what to do, changing nothing.

    Looks at the API server, the controllers of JobSets and their webhooks, TPU node pools, quota,
    workload identity, images, pods with their exit codes, the load balancer, and the admin server.
    What you may not list is told and left out. Needs: pip install lightkube. The exit code
    is 0 if all is well (warnings included), 1 if there are problems, 2 if it could not look.

    \b
    Examples:
      sax k8s doctor
      sax k8s doctor --topology v5e:4x8 --replicas 2     # before anything is deployed
      sax k8s doctor -n prod --context gke_my-project_us-west4_sax --json
      sax k8s doctor --uses leaderworkerset --uses kueue
    """
    try:
        wanted = _wanted(topology, machine_type, replicas, uses or [])
        snapshot = _snapshot(kubeconfig, context, namespace)
    except SaxError as error:
        say(f"sax: {error.text}")
        raise typer.Exit(_BLIND) from None
    from sax.kubernetes.doctor.diagnosis import diagnose
    from sax.kubernetes.doctor.finding import PROBLEM, worst

    found = diagnose(snapshot, wanted)
    if as_json:
        print(json.dumps([finding.as_json() for finding in found], indent=2))
    else:
        _show(found)
    raise typer.Exit(_PROBLEMS if worst(found) == PROBLEM else _WELL)


def _wanted(
    topology: str | None, machine_type: str | None, replicas: int, uses: list[str]
) -> Wanted:
    from sax.kubernetes.doctor.snapshot import USES, Wanted
    from sax.kubernetes.machines import slice_of

    if strange := [use for use in uses if use not in USES]:
        raise InvalidRequest(f"--uses {strange[0]!r}: choose of {', '.join(USES)}", param="uses")
    if replicas < 1:
        raise InvalidRequest(f"--replicas {replicas}: write 1 or more", param="replicas")
    if topology is None and machine_type is not None:
        raise InvalidRequest("--machine-type goes with --topology", param="machine_type")
    there = None if topology is None else slice_of(topology, machine_type)
    return Wanted(there=there, replicas=replicas, uses=tuple(uses))


def _snapshot(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Snapshot:
    from sax.kubernetes.doctor.cluster import open_cluster
    from sax.kubernetes.names import check_label

    if namespace is not None:
        check_label(namespace, "--namespace", "namespace")
    file = None if kubeconfig is None else str(kubeconfig)
    with open_cluster(file, context, namespace) as cluster:
        return cluster.look()


def _show(findings: list[Finding]) -> None:
    for finding in findings:
        print(f"{_SIGNS[finding.level]}  {_line(finding.about)}: {_line(finding.text)}")
        if finding.remedy and finding.level != "ok":
            print(f"         -> {_line(finding.remedy)}")
    counts = {level: sum(each.level == level for each in findings) for level in _SIGNS}
    print(f"\n{counts['problem']} problems, {counts['warning']} warnings, {counts['ok']} ok")


def _line(text: str) -> str:
    """What a cluster says cannot steer the terminal, nor begin a line of ours."""
    return printable(" ".join(text.split()))
