"""A server-side dry run on a real API server, where `SAX_TEST_KUBECONFIG` names one.

Starts kubectl. Nothing is created: the server validates, with its webhooks, and forgets.
"""

from __future__ import annotations

import os
import subprocess

from tests.k8s.manifests import kubectl

VARIABLE = "SAX_TEST_KUBECONFIG"
NO_CLUSTER = f"no cluster: set {VARIABLE} to a kubeconfig for a dry run on its API server"


def kubeconfig() -> str:
    """The file to use, "" for none."""
    return os.environ.get(VARIABLE, "")


def dry_run(text: str) -> str:
    """What the server says against these manifests; "" for nothing."""
    command = [
        kubectl() or "kubectl",
        f"--kubeconfig={kubeconfig()}",
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
    ]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""
