"""Templates: what they say, what is wrong with a bad one, and the objects made of a good one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from admin_server.provisioning.decision import choose_template
from admin_server.provisioning.object_names import cell_label, dns_label, object_name
from admin_server.provisioning.templates import Template, TemplateFolder, object_for, parse_template
from sax.errors import InvalidRequest
from sax.names import CellId
from sax.need import Need
from sax.types import ModelSpec, Placement
from tests.admin_server.provisioning.template_files import (
    jobset,
    leader_worker_set,
    template,
    write,
)
from tests.each_case import each_case

CELL = CellId("test")
M = "/sax/test/gemma_2b-it"


def test_a_jobset_says_its_devices_and_tags():
    read = template(jobset(args=["--port=1", "--tags=fast,spot"]))
    assert (read.name, read.devices, read.tags) == ("v5e-4x8", 32, {"fast", "spot"})


def test_a_leader_worker_set_counts_its_leader():
    body = leader_worker_set(hosts=4, chips=4)
    assert template(body).devices == 16
    group = body["spec"]["leaderWorkerTemplate"]
    group["leaderTemplate"] = {"spec": {"containers": [{"name": "sax-model-server"}]}}
    group["workerTemplate"]["spec"]["containers"][0]["name"] = "worker"
    assert template(body).devices == 12  # a head without chips, and three hosts


def test_without_chips_a_host_is_a_device():
    assert template(jobset(hosts=3, chips=0)).devices == 3


def test_an_object_is_for_one_model_and_says_so():
    made = object_for(template(jobset(args=["--tags=fast"])), M, "v5e-4x8-m-abcd-0", CELL)
    meta = made["metadata"]
    assert meta["name"] == "v5e-4x8-m-abcd-0"
    assert meta["labels"]["sax.dev/cell"] == "test"
    assert meta["annotations"]["sax.dev/model"] == M
    container = _container(made)
    assert container["args"] == [f"--tags=fast,model:{M},set:v5e-4x8-m-abcd-0"]


@each_case(
    "args, made",
    [
        (["--port=1"], ["--port=1", "--tags=MORE"]),
        (["--tags", "a", "--port=1"], ["--tags", "a,MORE", "--port=1"]),
        (["--tags=", "--x"], ["--tags=MORE", "--x"]),
        (["--tags=a", "--tags=b"], ["--tags=a", "--tags=b,MORE"]),
    ],
)
def test_tags_are_added_to_those_that_are_there(args, made):
    body = object_for(template(jobset(args=args)), M, "n-0", CELL)
    more = f"model:{M},set:n-0"
    assert _container(body)["args"] == [word.replace("MORE", more) for word in made]


def test_the_template_itself_stays_as_it_is():
    read = template(jobset())
    before = yaml.safe_dump(dict(read.body))
    object_for(read, M, "n-0", CELL)
    assert yaml.safe_dump(dict(read.body)) == before


def _container(body: dict[str, Any]) -> dict[str, Any]:
    job = body["spec"]["replicatedJobs"][0]["template"]["spec"]
    return job["template"]["spec"]["containers"][0]


def _with(path: str, value: Any) -> dict[str, Any]:
    """A JobSet with one thing changed."""
    body: Any = jobset()
    *steps, last = path.split(".")
    place = body
    for step in steps:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    place[last] = value
    return body


@each_case(
    "body, why",
    [
        (_with("kind", "Job"), "is a jobset.x-k8s.io/v1alpha2 Job: use a"),
        (_with("metadata.name", "V5e_x"), "letter first"),
        (_with("spec.replicatedJobs.0.replicas", 2), "one JobSet per replica"),
        (_with("spec.replicatedJobs", []), "no container named sax-model-server"),
        (_with("spec.replicatedJobs", {"a": 1}), "not a list of mappings"),
        (_with("spec.network.subdomain", "x"), "leave it out"),
        (_with("spec", 7), "not a mapping"),
        (_with("metadata.annotations", {"sax.dev/memory": "much"}), "as in 512Gi"),
        (jobset(args=["--tags=set:x"]), "itself adds it to every object"),
        (jobset(job="a" * 40), "shorter names"),
        ({**leader_worker_set(), "spec": {"replicas": 3}}, "spec.replicas 3: use 1"),
    ],
)
def test_a_bad_template_is_refused_with_its_file_and_what_is_wrong(body, why):
    with pytest.raises(InvalidRequest, match=re.escape(why)) as caught:
        parse_template(yaml.safe_dump(body), "x.yaml")
    assert "x.yaml" in caught.value.text


@each_case("text", ["", "a: 1\n---\nb: 2\n", "- 1", "a: [", "7"])
def test_a_file_is_one_document(text):
    with pytest.raises(InvalidRequest, match=r"x\.yaml is no"):
        parse_template(text, "x.yaml")


WORDS = ["spec", "template", "replicatedJobs", "containers", "name", "args", "metadata"]
anything = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)
    ),
)


@settings(deadline=None)
@given(anything)
def test_no_text_is_worse_than_refused(spec):
    body = {**jobset(), "spec": spec}
    with pytest.raises(InvalidRequest):
        parse_template(yaml.safe_dump(body), "x.yaml")


# Names


@settings(deadline=None)
@given(
    st.from_regex(r"/sax/test/[a-z]+[a-z0-9_-]{0,80}", fullmatch=True),
    st.from_regex(r"[a-z]([-a-z0-9]{0,60}[a-z0-9])?", fullmatch=True),
    st.integers(0, 999),
    st.integers(24, 50),
)
def test_every_name_is_a_label_with_room_for_what_comes_after(model_id, name, ordinal, longest):
    made = object_name(name, model_id, ordinal, longest)
    assert len(made) <= longest
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made)
    assert made.endswith(f"-{ordinal}")


def test_names_of_models_that_are_cut_alike_differ():
    names = {object_name("t", f"/sax/test/{'x' * 60}{n}", 0, 40) for n in range(20)}
    assert len(names) == 20


def test_pods_of_the_longest_name_have_63_letters():
    read = template(jobset(hosts=16))
    assert len(f"{'n' * read.longest}-sax-model-server-0-15-abcde") == 63


@settings(deadline=None)
@given(st.from_regex(r"[a-z]+[a-z0-9_-]{0,90}", fullmatch=True))
def test_a_cells_label_is_a_label_of_kubernetes(name):
    label = cell_label(CellId(name))
    assert len(label) <= 63
    assert re.fullmatch(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", label)


def test_cells_that_are_cut_alike_have_labels_of_their_own():
    assert len({cell_label(CellId("x" * 70 + end)) for end in ("", "y", "_", "-")}) == 4


def test_a_label_of_a_name_has_letters_digits_and_dashes():
    assert dns_label("Gemma_2b--it_") == "gemma-2b-it"


# Which one


def spec(**placement: Any) -> ModelSpec:
    place = Placement(**placement)
    return ModelSpec(model_id=M, model_path="x", checkpoint="c", replicas=1, placement=place)


SMALL = template(jobset("small", hosts=1))
LARGE = template(jobset("large", args=["--tags=fast"], annotations={"sax.dev/memory": "512Gi"}))
OTHER = template(jobset("other", annotations={"sax.dev/models": "/sax/test/llama-*, /sax/*/x"}))


@each_case(
    "placement, need, too_small, chosen",
    [
        ({}, None, (), "small"),
        ({"tags": ("fast",)}, None, (), "large"),
        ({"tags": (f"model:{M}",)}, None, (), "small"),
        ({"devices": 5}, None, (), "large"),
        ({}, Need(devices=8, memory=1), (), "large"),
        ({}, None, {"small"}, "large"),
    ],
)
def test_the_smallest_that_would_do_is_chosen(placement, need, too_small, chosen):
    found = choose_template(spec(**placement), need, [OTHER, LARGE, SMALL], too_small)
    assert isinstance(found, Template)
    assert found.name == chosen


@each_case(
    "placement, need, why",
    [
        ({"devices": 64}, None, "large has 32 devices, but 64 are needed"),
        ({"tags": ("spot",)}, None, "small lacks the tag spot"),
        ({"devices": 5}, Need(memory=2**40), "large has 512.0 GiB, but 1.0 TiB are needed"),
        ({"devices": 64}, None, "other is for other models"),
    ],
)
def test_where_none_would_do_each_ones_reason_is_told(placement, need, why):
    told = choose_template(spec(**placement), need, [SMALL, LARGE, OTHER])
    assert isinstance(told, str)
    assert why in told


# Folders


def test_a_mounted_folder_is_read_again_when_its_link_moves(tmp_path: Path):
    for version, name in (("..1", "a"), ("..2", "b")):
        write(tmp_path / version, jobset(name))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "t.yaml").symlink_to("..data/a.yaml")
    folder = TemplateFolder(str(tmp_path))
    assert [each.name for each in folder.templates] == ["a"]
    assert not folder.refresh()
    (tmp_path / "t.yaml").unlink()
    (tmp_path / "t.yaml").symlink_to("..2/b.yaml")
    assert folder.refresh()
    assert [each.name for each in folder.templates] == ["b"]


def test_what_becomes_bad_is_told_and_what_was_good_stays(tmp_path: Path):
    folder = TemplateFolder(str(write(tmp_path / "t", jobset("a"))))
    (tmp_path / "t" / "b.yaml").write_text("kind: Pod")
    folder.refresh()
    assert "b.yaml is a None Pod" in folder.trouble
    assert [each.name for each in folder.templates] == ["a"]
    (tmp_path / "t" / "b.yaml").unlink()
    folder.refresh()
    assert not folder.trouble


def test_a_folder_without_templates_or_with_two_of_one_name_is_refused(tmp_path: Path):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        TemplateFolder(str(tmp_path / "none"))
    with pytest.raises(InvalidRequest, match="there is no template"):
        TemplateFolder(str(tmp_path))
    write(tmp_path, jobset("a"))
    (tmp_path / "copy.yaml").write_text((tmp_path / "a.yaml").read_text())
    with pytest.raises(InvalidRequest, match=r"a\.yaml and copy\.yaml are both named a"):
        TemplateFolder(str(tmp_path))
