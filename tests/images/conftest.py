"""The images, each built when the first test asks for it, and gone with the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.images.container import Container
from tests.images.machine import missing
from tests.images.store import Image, Store

Run = Callable[..., Container]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if why := missing():
        pytest.skip(why)
    with Store(tmp_path_factory.mktemp("images") / "store") as opened:
        yield opened


@pytest.fixture(scope="session")
def control(store: Store) -> Image:
    return store.build("control")


@pytest.fixture(scope="session")
def model_cpu(store: Store) -> Image:
    return store.build("model-cpu")


@pytest.fixture(scope="session")
def model_tpu(store: Store) -> Image:
    return store.build("model-tpu")


@pytest.fixture(params=["control", "model_cpu", "model_tpu"])
def image(request: pytest.FixtureRequest) -> Image:
    return request.getfixturevalue(request.param)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """Starts containers, which end with the test."""
    started: list[Container] = []

    def run(image: Image, *arguments: str, **settings: object) -> Container:
        folder = tmp_path / f"container-{len(started)}"
        started.append(Container(image, folder, arguments, **settings))  # type: ignore[arg-type]
        return started[-1]

    yield run
    for each in reversed(started):
        each.kill()
