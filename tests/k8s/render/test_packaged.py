"""The manifests that come with sax, read without kustomize."""

from __future__ import annotations

from pathlib import Path

import pytest

from k8s.render.packaged import control_plane, leader_worker_set, model_server_set, objects_in
from sax.errors import Internal


def test_there_is_one_of_each_set_and_a_control_plane() -> None:
    assert model_server_set()["kind"] == "JobSet"
    assert leader_worker_set()["kind"] == "LeaderWorkerSet"
    assert {"Deployment", "Service", "ServiceAccount"} <= {each["kind"] for each in control_plane()}


def test_what_an_anchor_names_twice_is_two_objects() -> None:
    """Else a change of a Deployment's labels would be one of its pods' labels."""
    (deployment,) = (
        each
        for each in control_plane()
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "sax-http")
    )
    deployment["metadata"]["labels"]["app"] = "changed"
    assert deployment["spec"]["template"]["metadata"]["labels"]["app"] == "sax-http"


def test_more_than_a_list_of_resources_is_an_error_and_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("kind: One\n---\nkind: Two\n")
    listing = tmp_path / "kustomization.yaml"
    listing.write_text("kind: Kustomization\nresources: [one.yaml]\n")
    assert [each["kind"] for each in objects_in(tmp_path)] == ["One", "Two"]
    listing.write_text("kind: Kustomization\nresources: [one.yaml]\nnamePrefix: a-\n")
    with pytest.raises(Internal, match="namePrefix is not supported"):
        list(objects_in(tmp_path))
