"""A server-side dry run on a real API server, where `SAX_TEST_KUBECONFIG` names one.

Starts kubectl. Manifests are validated, with webhooks, and forgotten. All that is created is an
empty namespace, for objects to be new in: in one with a cell, its JobSets could not be changed.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Generator
from contextlib import contextmanager

from tests.k8s.manifests import kubectl

VARIABLE = "SAX_TEST_KUBECONFIG"
NO_CLUSTER = f"no cluster: set {VARIABLE} to a kubeconfig for a dry run on its API server"


def kubeconfig() -> str:
    """The file to use, "" for none."""
    return os.environ.get(VARIABLE, "")


@contextmanager
def own_namespace() -> Generator[str]:
    """A new namespace, deleted afterwards. Raises CalledProcessError if it cannot be made."""
    name = f"sax-dry-run-{uuid.uuid4().hex[:8]}"
    _run("create", "namespace", name).check_returncode()
    try:
        yield name
    finally:
        _run("delete", "namespace", name, "--wait=false")


def dry_run(text: str, namespace: str) -> str:
    """What the server says against these manifests; "" for nothing."""
    words = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    done = _run(f"--namespace={namespace}", *words, given=text)
    return done.stderr.strip() if done.returncode else ""


def _run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [kubectl() or "kubectl", f"--kubeconfig={kubeconfig()}", *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)
