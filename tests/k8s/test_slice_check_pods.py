"""The smoke test of a slice, from its manifests: its pods, as local processes, count devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.network import network
from tests.k8s.local_cluster import LocalCluster, addresses
from tests.k8s.manifests import K8S, objects_of, render
from tests.k8s.pods import pods_of

pytestmark = pytest.mark.timeout(600)

CHIPS = 4
MACHINE = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(CHIPS), "NPROC": "16"}


@pytest.mark.parametrize(
    ("example", "count"),
    [
        ("slice-check", 8),
        ("flex-start/single-host", 1),
        pytest.param("flex-start/queued", 8, marks=pytest.mark.extended),
    ],
)
def test_every_host_of_the_job_counts_all_devices_of_the_slice(
    example: str, count: int, tmp_path: Path
) -> None:
    objects = objects_of(render(K8S / "examples" / example))
    planned = pods_of(objects)
    assert len(planned) == count
    with network(count) as wires:
        hosts = addresses(wires, planned)
        pods = pods_of(objects, lambda pod: hosts[pod.name].address)
        cluster = LocalCluster(tmp_path, wires, hosts, MACHINE, {})
        try:
            cluster.start(pods)
            ended = cluster.wait(300)
        finally:
            cluster.close()
        logs = [cluster.log(pod.name) for pod in pods]
    assert set(ended.values()) == {0}, "\n".join(logs)
    assert all(f"all {count * CHIPS} devices answer" in log for log in logs), "\n".join(logs)
