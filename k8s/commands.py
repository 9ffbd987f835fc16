"""The `k8s` command group: `render` and `doctor`."""

from __future__ import annotations

import typer

from k8s.doctor_command import doctor
from k8s.render_command import render
from sax.command import PLAIN

k8s = typer.Typer(
    name="k8s",
    help="Render Kubernetes manifests, diagnose a cluster.",
    no_args_is_help=True,
    **PLAIN,
)
k8s.command()(render)
k8s.command()(doctor)


def register(app: typer.Typer) -> None:
    """Add the group to the command line (entry point of `sax.commands`)."""
    app.add_typer(k8s)
