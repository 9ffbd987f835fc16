"""Fixtures of the tests of manifests."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.k8s.cluster import NO_CLUSTER, kubeconfig, own_namespace


@pytest.fixture(scope="session")
def dry_run_namespace() -> Generator[str]:
    """A namespace of the real cluster in which nothing is; skips where there is no cluster."""
    if not kubeconfig():
        pytest.skip(NO_CLUSTER)
    with own_namespace() as name:
        yield name
