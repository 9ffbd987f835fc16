"""Whom the bucket sees."""

from __future__ import annotations

from k8s.doctor.finding import PROBLEM, WARNING
from k8s.render.fields import name_of
from tests.k8s.doctor.diagnosing import only, troubles
from tests.k8s.doctor.snapshots import applied, node, pool, well


def test_placeholders_of_the_manifests_are_problems() -> None:
    accounts = applied()["serviceaccounts"]
    accounts[0]["metadata"]["annotations"] = {
        "iam.gke.io/gcp-service-account": "SAX_GSA@PROJECT_ID.iam.gserviceaccount.com"
    }
    assert "PROJECT_ID was never replaced" in only(well(serviceaccounts=accounts)).text
    config = applied()["configmaps"][0]
    config["data"]["GSBUCKET"] = "BUCKET_NAME"
    found = only(well(configmaps=[config]))
    assert "'BUCKET_NAME', which is not a bucket" in found.text
    assert "patch configmap sax-cell" in found.remedy


def test_what_the_pods_cannot_start_without_is_missed() -> None:
    accounts = [each for each in applied()["serviceaccounts"] if name_of(each) != "sax-gateway"]
    assert "no ServiceAccount sax-gateway" in only(well(serviceaccounts=accounts)).text
    assert "no ConfigMap sax-cell" in only(well(configmaps=[])).text


def test_pools_without_workload_identity_are_named_unless_the_bucket_is_elsewhere() -> None:
    bare = {"iam.gke.io/gke-metadata-server-enabled": ""}
    nodes = [*pool("p0"), *(node(f"p1-{i}", "p1", labels=bare) for i in range(8))]
    found = only(well(nodes=nodes))
    assert (found.level, found.about) == (WARNING, "identity")
    assert "node-pools update p1 " in found.remedy
    all_bare = [node(f"{p}-{i}", p, labels=bare) for p in ("p0", "p1") for i in range(8)]
    assert only(well(nodes=all_bare)).level == PROBLEM
    config = applied()["configmaps"][0]
    config["data"]["GSBUCKET"] = "s3://elsewhere"
    assert not troubles(well(nodes=nodes, configmaps=[config]))
