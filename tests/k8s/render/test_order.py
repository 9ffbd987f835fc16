"""What an order refuses, and the words with which it does."""

from __future__ import annotations

from typing import Any

import pytest

from k8s.render.bucket import StorageBucket
from k8s.render.image import ImageSource
from k8s.render.order import read_plan
from sax.errors import InvalidRequest, MemoryPlanError, Unavailable
from sax.names import CellId, ModelId
from tests.each_case import each_case
from tests.k8s.render.orders import order, plan, plan_text

_GIB = 2**30


@each_case(
    "changes, words",
    [
        ({"replicas": 0}, "--replicas 0: write 1 to"),
        ({"replicas": -1}, "--replicas -1"),
        ({"replicas": 10**9}, "--replicas 1000000000"),
        ({"kind": "deployment"}, "choose one of jobset"),
        ({"part": "half"}, "choose one of control"),
        ({"namespace": "Prod"}, "lower-case letters"),
        ({"namespace": "a: b"}, "lower-case letters"),
        ({"model": "a\nb: c"}, "one line without control characters"),
        ({"model": ""}, "one line"),
        ({"overrides": {"A\n": "1"}}, "one line"),
        ({"overrides": {"A": '"x\u2028y"'}}, "one line"),
        ({"model_path": "a b"}, "not a model path"),
        ({"slots": 0}, "--slots 0"),
        ({"max_context": -5}, "--max-context -5"),
        ({"service_account_email": "me@example.com"}, "Google service account"),
        ({"service_account_email": "me@x.iam.gserviceaccount.com\n"}, "Google service account"),
        ({"flex_start": True, "spot": True}, "give only one"),
        ({"model_id": ModelId("other", "m")}, "in another cell.*--cell /sax/other"),
    ],
)
def test_what_no_cluster_would_take_is_refused_with_a_remedy(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        order(**changes)


@each_case("name", ["x" * 35, "Sax", "-a", "a_b", "7b", "a\n"])
@each_case("kind", ["jobset", "one-jobset"])
def test_a_name_that_is_none_once_expanded_is_refused(kind: str, name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        order(name=name, kind=kind, replicas=11).check_names(hosts=64)
    assert refused.value.param == "name"


def test_the_replicas_behind_a_name_are_counted() -> None:
    """sax-model-server-set-9 has one letter less than sax-model-server-set-10."""
    order(name="x" * 34, replicas=10).check_names(hosts=8)
    with pytest.raises(InvalidRequest, match="too long"):
        order(name="x" * 34, replicas=11).check_names(hosts=8)


def test_a_leader_worker_set_is_held_to_its_own_limits() -> None:
    order(name="x" * 50, kind="leaderworkerset").check_names(hosts=8)
    with pytest.raises(InvalidRequest, match="too long"):
        order(name="x" * 51, kind="leaderworkerset").check_names(hosts=8)


@each_case(
    "text, variable",
    [
        ("gs://my-sax", "my-sax"),
        ("gs://my-sax/", "my-sax"),
        ("gs://my-sax/cells/one", "gs://my-sax/cells/one"),
        ("s3://my-sax", "s3://my-sax"),
        ("az://my-sax/cells", "az://my-sax/cells"),
    ],
)
def test_a_bucket_is_told_as_saxml_tells_it(text: str, variable: str) -> None:
    bucket = StorageBucket.parse(text)
    assert bucket.variable == variable
    assert (bucket.credentials is None) == text.startswith("gs://")


@each_case("text", [
    "my-sax", "/data", "file:///data", "memory://x", "gs://", "gs:///x", "gs://My-Bucket", "gs://a",
    "gs://my-sax/../x", "gs://my-sax//x", "gs://my sax", "gs://my-sax/x\ny", "s3://a_b", "az://a--b",
    "gs://my-sax?x=1", "http://my-sax",
])  # fmt: skip
def test_what_is_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--bucket"):
        StorageBucket.parse(text)


@each_case(
    "registry",
    [
        "us-docker.pkg.dev/me/sax",
        "localhost:5000",
        "localhost/x",
        "docker.io/me",
        "10.0.0.1:50/a",
    ],
)
def test_images_are_named_in_a_registry(registry: str) -> None:
    source = ImageSource(registry, "v2")
    assert source.image("sax-control:0.1.0") == f"{registry}/sax-control:v2"
    assert source.image("other/image:1") == "other/image:1"


@each_case("registry", [
    "me/sax", "https://gcr.io/me", "gcr.io/me/", "gcr.io/Me", "gcr.io/me:tag", "", "gcr.io/a\nb",
    "gcr.io/a b", "REGION-docker.pkg.dev/PROJECT/REPO", "gcr.io/" + "a" * 300,
])  # fmt: skip
def test_what_is_no_registry_is_refused(registry: str) -> None:
    with pytest.raises(InvalidRequest, match="--image-registry"):
        ImageSource(registry)


@each_case("tag", ["", ".a", "a:b", "a b", "a\n", "a" * 129, "é"])
def test_what_is_no_tag_is_refused(tag: str) -> None:
    with pytest.raises(InvalidRequest, match="--tag"):
        ImageSource(None, tag)


def test_a_cell_of_its_own_and_a_model_in_it_agree() -> None:
    made = order(cell=CellId("prod"), model_id=ModelId("prod", "m"))
    assert str(made.cell) == "/sax/prod"


def test_a_plan_that_fits_tells_what_manifests_need() -> None:
    made = plan()
    assert (made.topology, made.hosts, made.devices) == ("v5e:4x8", 8, 32)
    assert made.weights_of_slice == 352 * _GIB
    assert "11.0 GiB of weights" in str(made)


def test_a_model_that_does_not_fit_is_refused_in_the_plans_own_words() -> None:
    advice = ['--set QUANTIZE="int8": 9 GiB']
    text = plan_text(fits=False, problem="m does not fit: 22 GiB", advice=advice, memory=None)
    with pytest.raises(MemoryPlanError) as refused:
        read_plan(text)
    assert refused.value.text.startswith("m does not fit: 22 GiB\n")
    assert '--set QUANTIZE="int8": 9 GiB' in refused.value.text


@each_case("text", ["", "null", "[]", "{}", "Traceback", '{"fits": true}'])
def test_what_is_no_plan_is_told_so(text: str) -> None:
    with pytest.raises(Unavailable, match="--no-plan"):
        read_plan(text)
