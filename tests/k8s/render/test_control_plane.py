"""The control plane with an order's words in it."""

from __future__ import annotations

import pytest

from k8s.render.control_plane import control_plane_of, put_in
from sax.errors import Internal
from tests.k8s.render.orders import order


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
