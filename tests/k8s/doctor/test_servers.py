"""What the admin server says of its cell."""

from __future__ import annotations

from typing import Any

import pytest

from sax.finding import PROBLEM, WARNING
from tests.k8s.doctor.diagnosing import only, troubles
from tests.k8s.doctor.snapshots import LEADING, well


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
