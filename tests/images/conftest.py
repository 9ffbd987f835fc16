"""The images, each built when the first test asks for it, and gone with the last."""

from __future__ import annotations

import os
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


@pytest.fixture(scope="session")
def model_cuda(store: Store) -> Image:
    return store.build("model-cuda")


# CUDA's wheels are 3.4 GB, and the way to its image takes 20: built where somebody asks for it.
_CUDA = ["model_cuda"] if os.environ.get("SAX_IMAGE_CUDA") else []


@pytest.fixture(params=["control", "model_cpu", "model_tpu", *_CUDA])
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
