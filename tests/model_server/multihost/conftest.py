"""What is compiled here is written to files or sent to other hosts."""

import pytest

from model_server.multihost import channel, primary, secondary


@pytest.fixture(autouse=True, scope="module")
def _compiled_anew(compiled_anew: None) -> None:
    """Applies to every test of this folder."""


@pytest.fixture
def quick_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts beat and look often, and the primary does not wait for others to exit."""
    for module in (primary, secondary):
        monkeypatch.setattr(module, "BEAT_S", 0.05)
    monkeypatch.setattr(primary, "_EXIT_S", 0.0)
    monkeypatch.setattr(channel, "_LOOK_MS", 50)
