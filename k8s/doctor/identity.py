"""Checks access to the bucket: ServiceAccount, workload identity of nodes, bucket name. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.doctor.finding import OK, PROBLEM, WARNING, Finding, some
from k8s.doctor.snapshot import ClusterNeeds, Snapshot
from k8s.render.fields import Object, label, name_of, text
from k8s.render.rights import ACCOUNTS
from sax.slices import NODE_POOL_LABEL

_ABOUT = "identity"
_CONFIG = "sax-cell"
_ANNOTATION = "iam.gke.io/gcp-service-account"
_METADATA = "iam.gke.io/gke-metadata-server-enabled"
_PLACEHOLDERS = ("BUCKET_NAME", "PROJECT_ID", "SAX_GSA", "PROJECT_NUMBER")


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    if snapshot.knows("serviceaccounts"):
        yield from (_account(name, snapshot) for name in ACCOUNTS)
    bucket: Object = {}
    if snapshot.knows("configmaps"):
        found = [each for each in snapshot.of("configmaps") if name_of(each) == _CONFIG]
        bucket = found[0] if found else {}
        yield _bucket(bucket, snapshot.namespace)
    if snapshot.is_on_gke and _is_googles(bucket):
        yield from _nodes(snapshot)


def _account(account: str, snapshot: Snapshot) -> Finding:
    where = snapshot.namespace
    found = [each for each in snapshot.of("serviceaccounts") if name_of(each) == account]
    if not found:
        return Finding(
            PROBLEM,
            _ABOUT,
            f"there is no ServiceAccount {account} in namespace {where}: its pods cannot start",
            "sax k8s render MODEL ... --only control | kubectl apply --server-side -f -",
        )
    email = text(found[0], "metadata", "annotations", _ANNOTATION)
    if placeholder := _placeholder(email):
        return Finding(
            PROBLEM,
            _ABOUT,
            f"{account} acts as {email}: {placeholder} was never replaced",
            f"kubectl -n {where} annotate --overwrite serviceaccount {account} "
            f"{_ANNOTATION}=NAME@PROJECT.iam.gserviceaccount.com",
        )
    if email:
        return Finding(OK, _ABOUT, f"{account} acts as {email}")
    return Finding(
        OK,
        _ABOUT,
        f"{account} acts as itself: its folders of the bucket must be granted to "
        f"ns/{where}/sa/{account} of the cluster's workload identity pool",
    )


def _bucket(config: Object, namespace: str) -> Finding:
    bucket = text(config, "data", "GSBUCKET")
    if not config:
        return Finding(
            PROBLEM,
            "bucket",
            f"there is no ConfigMap {_CONFIG}: no sax pod can start",
            "sax k8s render MODEL ... --only control | kubectl apply --server-side -f -",
        )
    if not bucket or _placeholder(bucket):
        return Finding(
            PROBLEM,
            "bucket",
            f"GSBUCKET in ConfigMap {_CONFIG} is {bucket!r}, which is not a bucket",
            f"kubectl -n {namespace} patch configmap {_CONFIG} --type=merge -p "
            '\'{"data":{"GSBUCKET":"MY-BUCKET"}}\' && '
            f"kubectl -n {namespace} rollout restart deployment",
        )
    return Finding(OK, "bucket", f"state is stored in {bucket}")


def _is_googles(config: Object) -> bool:
    bucket = text(config, "data", "GSBUCKET")
    return "://" not in bucket or bucket.startswith("gs://")


def _nodes(snapshot: Snapshot) -> Iterator[Finding]:
    without = [node for node in snapshot.of("nodes") if label(node, _METADATA) != "true"]
    pools = sorted({label(node, NODE_POOL_LABEL) or "(none)" for node in without})
    if not snapshot.of("nodes"):
        return
    if not pools:
        yield Finding(OK, _ABOUT, "every node has workload identity's metadata server")
        return
    all_of_them = len(without) == len(snapshot.of("nodes"))
    yield Finding(
        PROBLEM if all_of_them else WARNING,
        _ABOUT,
        f"node pools {some(pools)} have no workload identity: pods there cannot use the bucket",
        f"gcloud container node-pools update {pools[0]} --cluster=CLUSTER --location=LOCATION "
        "--workload-metadata=GKE_METADATA"
        + (
            "   (first: gcloud container clusters update CLUSTER --location=LOCATION "
            "--workload-pool=PROJECT_ID.svc.id.goog)"
            if all_of_them
            else ""
        ),
    )


def _placeholder(text: str) -> str:
    return next((word for word in _PLACEHOLDERS if word in text), "")
