"""What `sax k8s render` prints: the same objects as kustomize makes, with the order's words in."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s.render.bucket import StorageBucket
from k8s.render.fields import pod_of
from k8s.render.image import ImageSource
from k8s.render.order import KINDS, SlicePlacement
from k8s.render.rendering import Rendered, control_plane_of, put_in, render
from model_server.multihost.membership import membership
from sax.cli.publication import parse_publication
from sax.errors import Internal, InvalidRequest
from sax.names import CellId, ModelId
from sax.slices import GENERATIONS, slice_of
from tests.each_case import each_case
from tests.k8s.pods import pods_of
from tests.k8s.render.orders import MODEL, by_name, order, plan, rendered

_SLICES = [f"{each.chip}:{size}" for each in GENERATIONS.values() for size in each.sizes]


def test_a_slice_is_asked_for_as_the_cluster_knows_it() -> None:
    made = rendered("v6e:4x4", replicas=3, planned=plan(slice=_slice("v6e:4x4", 4, 16)))
    assert [each["metadata"]["name"] for each in made.servers] == [
        f"sax-model-server-set-{index}" for index in range(3)
    ]
    for each in made.servers:
        job = each["spec"]["replicatedJobs"][0]
        assert job["replicas"] == 1
        assert (job["template"]["spec"]["parallelism"], job["template"]["spec"]["completions"]) == (
            4,
            4,
        )
        pod = pod_of(each)
        assert pod["nodeSelector"] == {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": "4x4",
        }
        container = pod["containers"][0]
        assert container["resources"]["limits"]["google.com/tpu"] == "4"
        assert container["resources"]["requests"]["memory"] == "56Gi"
        assert {"--platform_chip=tpuv6e", "--platform_topology=4x4"} <= set(container["args"])


def _slice(topology: str, hosts: int, devices: int) -> dict[str, Any]:
    return {"topology": topology, "hosts": hosts, "devices": devices}


def test_single_hosts_share_a_node_pool_and_others_never_do() -> None:
    for kind in KINDS:
        alone = rendered("v5e:2x2", kind=kind).servers[0]["metadata"]
        assert "annotations" not in alone
        together = rendered("v5e:2x4", kind=kind).servers[0]["metadata"]
        assert "cloud.google.com/gke-nodepool" in together["annotations"].values()


@each_case("kind", KINDS)
@each_case("topology, locks", [("v5e:2x2", False), ("v6e:4x4", True)])
def test_chips_whose_driver_locks_memory_get_the_right_to_and_others_no_right(
    topology: str, locks: bool, kind: str
) -> None:
    made = rendered(topology, kind=kind)
    for server in made.servers:
        [container] = pod_of(server)["containers"]
        rights = container["securityContext"]["capabilities"]
        assert rights == {"drop": ["ALL"], **({"add": ["SYS_RESOURCE"]} if locks else {})}


def test_a_machine_with_eight_chips_is_one_host() -> None:
    made = rendered("v5e:2x4", "ct5lp-hightpu-8t").servers[0]
    assert made["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] == 1
    assert pod_of(made)["containers"][0]["resources"]["limits"]["google.com/tpu"] == "8"


@each_case("kind", KINDS)
@each_case("topology", ["v5e:1x1", "v5e:2x2", "v5e:2x4", "v5p:2x2x4"])
def test_the_pods_find_each_other_by_their_environment_alone(topology: str, kind: str) -> None:
    made = rendered(topology, kind=kind)
    pods = [pod for pod in pods_of(made.objects) if "model-server" in pod.owner]
    groups: dict[str, list[Any]] = {}
    for pod in pods:
        groups.setdefault(pod.owner, []).append(pod)
    assert len(groups) == 2
    for members in groups.values():
        found = [membership("", None, pod.containers[0].env, pod.hostname) for pod in members]
        assert {each.count for each in found} == {len(members)}
        assert sorted(each.ordinal for each in found) == list(range(len(members)))
        assert len({each.primary for each in found}) == 1


def test_every_word_of_the_order_reaches_its_place() -> None:
    made = rendered(
        cell=CellId("prod"), namespace="serving", bucket=StorageBucket.parse("s3://state/x"),
        images=ImageSource("us-docker.pkg.dev/me/sax", "v2"), slots=7, max_context=512, spot=True,
        service_account_email="sax@my-project.iam.gserviceaccount.com", is_reserved=True,
        model_id=ModelId("prod", "big"),
    )  # fmt: skip
    named = by_name(made.objects)
    assert named["ConfigMap", "sax-cell"]["data"] == {
        "GSBUCKET": "s3://state/x",
        "SAX_CELL": "/sax/prod",
    }
    account = named["ServiceAccount", "sax-admin"]["metadata"]["annotations"]
    assert account["iam.gke.io/gcp-service-account"] == "sax@my-project.iam.gserviceaccount.com"
    assert {each["metadata"]["namespace"] for each in made.objects} == {"serving"}
    images = {c["image"] for each in made.objects for c in pod_of(each).get("containers", ())}
    there = "us-docker.pkg.dev/me/sax"
    assert images == {f"{there}/sax-control:v2", f"{there}/sax-model-tpu:v2"}
    pod = pod_of(named["JobSet", "sax-model-server-set-1"])
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert {
        "--slots=7",
        "--max_context=512",
        "--tags=model:/sax/prod/big,set:sax-model-server-set-1",
    } <= set(pod["containers"][0]["args"])
    assert "AWS_ACCESS_KEY_ID" in made.heading


def test_the_flags_are_flags_of_the_model_server() -> None:
    from model_server.flags.command_line import make_config

    made = rendered(slots=7, max_context=512, is_reserved=True)
    config = make_config(pod_of(made.servers[0])["containers"][0]["args"])
    assert (config.slots, config.max_context, config.platform_topology) == (7, 512, "4x8")
    assert config.tags == (
        "model:/sax/test/lmcloudspmd175b32test",
        "set:sax-model-server-set-0",
    )


def test_flex_start_nodes_are_asked_for() -> None:
    pod = pod_of(rendered(flex_start=True).servers[0])
    assert pod["nodeSelector"]["cloud.google.com/gke-flex-start"] == "true"
    assert "--flex-start" in rendered(flex_start=True).heading


def test_no_placeholder_of_the_packaged_manifests_is_left() -> None:
    text = rendered().as_text()
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not re.search(r"BUCKET_NAME|PROJECT_ID|SAX_GSA", body)


def test_the_same_order_gives_the_same_bytes_and_no_aliases() -> None:
    made = rendered(planned=plan())
    assert made.as_text() == rendered(planned=plan()).as_text()
    assert not re.search(r"[&*]id\d", made.as_text())
    assert list(yaml.safe_load_all(made.as_text())) == list(made.objects)


def test_a_part_is_only_that_part() -> None:
    control, servers = rendered(part="control"), rendered(part="servers")
    assert not control.servers
    assert not servers.control
    assert rendered().objects == control.objects + servers.objects
    assert "node-pools" not in control.heading


def _comment(made: Rendered, begin: str) -> str:
    lines = [line.removeprefix("#").strip() for line in made.heading.splitlines()]
    return next(line for line in lines if line.startswith(begin))


def test_the_heading_tells_how_to_publish_with_the_same_overrides() -> None:
    made = rendered(overrides={"QUANTIZE": '"int8"', "TOP": '"it\'s"'}, planned=plan())
    words = shlex.split(_comment(made, "sax publish"))[2:]
    published = parse_publication(words)
    assert published.overrides == {"QUANTIZE": '"int8"', "TOP": '"it\'s"'}
    assert published.model_path == f"saxml.server.pax.lm.params.{MODEL}"
    assert (published.checkpoint, published.replicas) == ("None", 2)
    body = json.loads(shlex.split(_comment(made, "curl"))[-1])
    from http_gateway.saxml.schema import PublishBody

    sent = PublishBody.model_validate(body)
    assert sent.overrides == published.overrides
    assert (sent.model, sent.model_path) == (published.model_id, published.model_path)


@each_case("model, changes, words", [
    ("gs://b/gemma-2b", {}, ["/sax/test/gemma-2b", "auto", "gs://b/gemma-2b"]),
    ("./my model", {}, ["/sax/test/my-model", "auto", "gs://my-sax/checkpoints/my-model"]),
    ("meta-llama/Llama-3.1-8B", {"model_path": "llama"},
     ["/sax/test/llama-3-1-8b", "llama", "gs://my-sax/checkpoints/llama-3-1-8b"]),
    ("lm_cloud.LmCloudSpmd2BTest", {},
     ["/sax/test/lmcloudspmd2btest", "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest",
      "None"]),
    ("./7b.gguf", {}, ["/sax/test/m-7b-gguf", "auto", "gs://my-sax/checkpoints/m-7b-gguf"]),
])  # fmt: skip
def test_without_a_plan_the_words_of_publish_follow_from_the_name(
    model: str, changes: dict[str, Any], words: list[str]
) -> None:
    made = rendered(model=model, **changes)
    assert shlex.split(_comment(made, "sax publish"))[2:5] == words
    assert "Not planned" in made.heading


def test_a_model_of_which_no_name_can_be_made_needs_one() -> None:
    with pytest.raises(InvalidRequest, match="--publish-as"):
        rendered(model="./模型")
    rendered(model="./模型", model_id=ModelId("test", "model"))


_TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("'\"\\:#{}[]&*!|>%@`\n\t- "),
    max_size=30,
)


@pytest.mark.extended
@settings(max_examples=150, deadline=None)
@given(_TEXT, _TEXT, _TEXT, st.sampled_from(_SLICES), st.sampled_from(KINDS))
def test_no_text_becomes_yaml(
    model: str, value: str, folder: str, topology: str, kind: str
) -> None:
    """Whatever is let through stands in comments, or whole in one value."""
    try:
        made = rendered(
            topology,
            model=model,
            kind=kind,
            replicas=1,
            overrides={"KEY": json.dumps(value, ensure_ascii=False)},
            bucket=StorageBucket.parse(f"gs://my-sax/{folder}"),
            model_id=ModelId("test", "m"),
        )
    except InvalidRequest:
        return
    documents = list(yaml.safe_load_all(made.as_text()))
    assert documents == list(made.objects)
    assert _shape(documents) == _shape(rendered(topology, kind=kind, replicas=1).objects)
    assert all(line.startswith("#") for line in made.heading.splitlines())


def test_a_comment_is_never_left_however_the_command_looks() -> None:
    placed = SlicePlacement(slice_of("v5e:4x8"))
    made = render(order(), placed, "x\nkind: Evil\u2028kind: Evil\x85kind: Evil\r---\n")
    assert all(line.startswith("#") for line in made.heading.splitlines())
    assert list(yaml.safe_load_all(made.as_text())) == list(made.objects)


def _shape(objects: Any) -> list[tuple[str, str]]:
    return [(each["kind"], each["metadata"]["name"]) for each in objects]


def test_accounts_that_are_given_rights_move_to_the_namespace_too() -> None:
    binding = {
        "kind": "RoleBinding",
        "metadata": {"name": "b"},
        "subjects": [
            {"kind": "ServiceAccount", "name": "sax-model-server"},
            {"kind": "User", "name": "me"},
        ],
    }
    put_in("serving", [binding])
    assert binding["metadata"] == {"name": "b", "namespace": "serving"}
    assert [each.get("namespace") for each in binding["subjects"]] == ["serving", None]


def test_packaged_manifests_without_a_place_for_the_bucket_are_a_bug() -> None:
    with pytest.raises(Internal, match="no ConfigMap, Deployment"):
        control_plane_of([{"kind": "ServiceAccount", "metadata": {"name": "a"}}], order())


def test_the_packaged_objects_stay_as_they_were() -> None:
    from k8s.render.packaged import control_plane

    packaged = control_plane()
    control_plane_of(packaged, order())
    assert packaged == control_plane()
