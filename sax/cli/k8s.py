"""The `k8s` command group: `render` and `doctor`."""

from __future__ import annotations

import typer

from sax.cli.failure import ReportingGroup
from sax.cli.k8s_doctor import doctor
from sax.cli.k8s_render import render

k8s = typer.Typer(
    name="k8s",
    help="Render Kubernetes manifests, diagnose a cluster.",
    cls=ReportingGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)
k8s.command()(render)
k8s.command()(doctor)
