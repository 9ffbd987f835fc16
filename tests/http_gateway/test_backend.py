"""Every route asks the cell through the backend, which notes what its answers tell."""

from __future__ import annotations

from tests.house import ROOT


def test_no_route_goes_round_the_backend_for_an_answer() -> None:
    files = (ROOT / "http_gateway").rglob("*.py")
    asking = {path.name for path in files if "client.generate_to" in path.read_text()}
    assert asking == {"backend.py"}, "call Backend.generate_to: the access line and traces need it"
