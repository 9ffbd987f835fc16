"""What a doctor says of a whole cluster, however much of it may be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s.doctor.diagnosis import diagnose
from k8s.doctor.snapshot import LOOKS, Snapshot
from sax.finding import OK, PROBLEM, WARNING, worst
from tests.k8s.doctor.diagnosing import NOTHING, TUTORIAL, only, troubles
from tests.k8s.doctor.snapshots import LEADING, SERVED, applied, definition, well


def test_a_cluster_in_which_all_is_well_has_no_troubles() -> None:
    assert not troubles(well())
    assert not troubles(well(), TUTORIAL)
    told = {each.about for each in diagnose(well(), NOTHING)}
    assert told >= {"API server", "controllers", "nodes", "quota", "identity", "bucket", "images"}
    assert told >= {"deployments", "jobsets", "address", "pods", "admin server"}


def test_an_empty_namespace_is_told_how_to_begin() -> None:
    empty = well(deployments=[], jobsets=[], pods=[], services=[], serviceaccounts=[])
    found = only(empty, TUTORIAL)
    assert found.level == WARNING
    assert "sax k8s render" in found.remedy


def test_an_old_cluster_is_warned_of() -> None:
    found = only(replace(well(), version="v1.27.3-gke.1"))
    assert (found.level, found.about) == (WARNING, "API server")


def test_what_may_not_be_seen_is_told_with_the_right_that_is_missing() -> None:
    blind = replace(well(), seen={}, forbidden=frozenset(look.name for look in LOOKS), admin=None)
    found = troubles(blind, TUTORIAL)
    assert {each.level for each in found} == {WARNING}
    assert len(found) == len(LOOKS)
    remedies = " ".join(each.remedy for each in found)
    assert "kubectl auth can-i list nodes --all-namespaces" in remedies
    assert "kubectl auth can-i list jobsets.jobset.x-k8s.io -n default" in remedies


@pytest.mark.parametrize("look", [look.name for look in LOOKS])
def test_each_look_alone_may_be_refused(look: str) -> None:
    versions = {each.resource: "v1" for each in LOOKS if each.is_custom} | SERVED
    before = well(customresourcedefinitions=[definition(*each) for each in versions.items()])
    seen = {name: things for name, things in before.seen.items() if name != look}
    found = diagnose(replace(before, seen=seen, forbidden=frozenset({look})), TUTORIAL)
    assert worst(found) == WARNING
    assert [each for each in found if each.about == "rights"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "status",
                    "spec",
                    "labels",
                    "name",
                    "conditions",
                    "type",
                    "message",
                    "containers",
                    "containerStatuses",
                    "state",
                    "waiting",
                    "replicatedJobs",
                    "taints",
                    "app.kubernetes.io/part-of",
                    "hard",
                    "used",
                    "involvedObject",
                    "reason",
                    "template",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)
_THINGS = st.lists(_JSON.filter(lambda each: isinstance(each, dict)), max_size=3)


@pytest.mark.extended
@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([look.name for look in LOOKS]), _THINGS), st.booleans())
def test_no_object_however_strange_ends_the_look(seen: dict[str, Any], ours: bool) -> None:
    if ours:
        seen = {**seen, "deployments": [*seen.get("deployments", []), *applied()["deployments"]]}
    for finding in diagnose(Snapshot(namespace="d", version="?", seen=seen, admin={}), TUTORIAL):
        assert finding.level in (OK, WARNING, PROBLEM)
        assert finding.text
        assert finding.level == OK or finding.remedy


@pytest.mark.parametrize(
    ("admin", "level", "words"),
    [
        ({"leading": False, "leader": "", "leadership": "stands by"}, PROBLEM, "no admin server"),
        ({"store_trouble": "403 on the bucket"}, PROBLEM, "403 on the bucket"),
        ({"totals": {"wanted_replicas": 2, "ready_replicas": 1}}, WARNING, "1 of 2 wanted"),
    ],
)
def test_the_admin_server_tells_how_its_cell_is(
    admin: dict[str, Any], level: str, words: str
) -> None:
    found = only(well(admin={**LEADING, **admin}))
    assert found.level == level
    assert words in found.text


def test_a_follower_that_names_the_leader_is_enough() -> None:
    assert not troubles(well(admin={**LEADING, "leading": False, "totals": {}}))


def test_an_admin_server_that_is_not_reached_is_a_warning() -> None:
    found = only(well(admin=None, admin_trouble="connection refused"))
    assert found.level == WARNING
    assert "port-forward" in found.remedy
