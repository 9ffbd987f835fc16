"""The commands `k8s render` and `k8s doctor`: words in, `sax.kubernetes` does the work."""

from __future__ import annotations

import typer

from sax.cli.failure import ReportingGroup
from sax.cli.k8s_doctor import doctor
from sax.cli.k8s_render import render

k8s = typer.Typer(
    name="k8s",
    help="Kubernetes: manifests for a model, and what is wrong with a cluster.",
    cls=ReportingGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
)
k8s.command()(render)
k8s.command()(doctor)
