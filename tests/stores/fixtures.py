"""Every kind of store that state may be kept in, as pytest fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import azurite, seaweed
from tests.stores.gcs import gcs_server
from tests.stores.moto import moto_server
from tests.stores.place import Place

# CI asks a folder and one S3; the night asks every kind.
MOTO = pytest.param("moto", marks=pytest.mark.extended)
SEAWEED, GCS, AZURITE = (
    pytest.param(kind, marks=pytest.mark.nightly) for kind in ("seaweed", "gcs", "azurite")
)
BUCKETS = [MOTO, SEAWEED, GCS, AZURITE]
KEPT = ["folder", *BUCKETS]  # outlives the process that wrote it
KINDS = ["memory", *KEPT]


@pytest.fixture(scope="session")
def moto_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """moto's S3 server."""
    with moto_server(tmp_path_factory.mktemp("moto")) as place:
        yield place


@pytest.fixture(scope="session")
def seaweed_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """SeaweedFS's S3 server, where it is installed."""
    if why := seaweed.missing():
        pytest.skip(why)
    with seaweed.seaweed_server(tmp_path_factory.mktemp("seaweed")) as place:
        yield place


@pytest.fixture(scope="session")
def gcs_place() -> Iterator[Place]:
    """Our own server of Google's XML API."""
    with gcs_server() as place:
        yield place


@pytest.fixture(scope="session")
def azurite_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Azurite, where it is installed."""
    if why := azurite.missing():
        pytest.skip(why)
    with azurite.azurite_server(tmp_path_factory.mktemp("azurite")) as place:
        yield place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """An empty corner of each kind of store, and the environment that leads there."""
    if request.param == "memory":
        return Place("memory://")
    if request.param == "folder":
        return Place(str(tmp_path / "a b"))
    server: Place = request.getfixturevalue(f"{request.param}_place")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return server.fresh()
