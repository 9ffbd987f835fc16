"""Unmodified clients of other makers against a running cell: `make clients`.

Each check runs in its client's own environment, which `make clients` installs; without it the
client's checks are skipped.
"""

from __future__ import annotations

import pytest

from tests.tools.clients.clients import CLIENTS, ClientProgram
from tests.tools.clients.conftest import Run
from tests.tools.clients.record import PASSED

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

CHECKS = [
    pytest.param(client, check, id=f"{client.name}-{check}")
    for client in CLIENTS
    for check in client.checks()
]


@pytest.mark.parametrize(("client", "check"), CHECKS)
def test_an_unmodified_client_works(
    client: ClientProgram, check: str, request: pytest.FixtureRequest
) -> None:
    if not client.installed:
        pytest.skip(f"{client.name} is not installed: make clients")
    outcome: Run = request.getfixturevalue("outcome")
    result = outcome(client)[check].result
    assert result == PASSED, result
