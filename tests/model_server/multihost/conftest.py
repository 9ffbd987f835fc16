import pytest


@pytest.fixture
def quick_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts beat and look often, and the primary does not wait for others to exit."""
    from model_server.multihost import channel, primary, secondary

    for module in (primary, secondary):
        monkeypatch.setattr(module, "BEAT_S", 0.05)
    monkeypatch.setattr(primary, "_EXIT_S", 0.0)
    monkeypatch.setattr(channel, "_LOOK_MS", 50)
