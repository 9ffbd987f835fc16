"""Custom models through the real loader: the user's function, overrides, memory, filter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from model_server.config import ModelServerConfig
from model_server.loading.custom import CustomRequest, LoadedCustom
from model_server.loading.loaded_batches import Batching
from model_server.loading.loader import ModelLoader, make_loader
from model_server.models import registry
from model_server.models.custom import CustomMethod, CustomModel, CustomProgram
from model_server.models.registry import register
from sax.errors import InvalidRequest, LoadFailed, MemoryPlanError, ModelPathNotFound
from sax.types import ModelSpec
from tests.model_server.loading.loads import quiet

PATH = "mine.Scaler"


def scaler(checkpoint: str | None, values: Mapping[str, Any]) -> CustomProgram:
    """Numbers as bytes, times SCALE; with a checkpoint its name's length is added."""
    scale, shift = np.float32(values["SCALE"]), np.float32(len(checkpoint or ""))
    method = CustomMethod(
        pre_process=lambda requests: np.array([float(r) for r in requests], np.float32),
        call=lambda weights, x: x * weights["scale"] + weights["shift"],
        post_process=lambda y: [str(float(n)).encode() for n in y],
        examples=(b"1",),
        batch_sizes=(1, 2, 8),
        wait_s=0.5,
    )
    return CustomProgram(methods={"custom": method}, weights={"scale": scale, "shift": shift})


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelLoader]:
    """One that knows the scaler; nothing is registered after the test."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    register(CustomModel(path=PATH, load=scaler, overridable={"SCALE": 2.0}))
    made = make_loader(ModelServerConfig(queue=7, strict_compile=True))
    yield made
    made.watch.stop()


def load(loader: ModelLoader, **changes: Any) -> LoadedCustom:
    given: dict[str, Any] = {
        "model_id": "/sax/test/scaler",
        "model_path": PATH,
        "checkpoint": "None",
        "replicas": 1,
    }
    loaded = loader(ModelSpec(**(given | changes)), quiet)
    assert isinstance(loaded, LoadedCustom)
    return loaded


def test_a_registered_model_loads_with_overrides_and_its_checkpoint(loader: ModelLoader) -> None:
    assert load(loader).runner.run([CustomRequest("custom", b"3")]) == [b"6.0"]
    loaded = load(loader, checkpoint="/four", overrides={"SCALE": "10"})
    assert loaded.runner.run([CustomRequest("custom", each) for each in (b"3", b"4")]) == [
        b"35.0",
        b"45.0",
    ]
    assert loader.compiles_while_serving() == 0


def test_batching_is_as_the_method_says_and_the_queue_as_the_server(loader: ModelLoader) -> None:
    assert load(loader).batching == {"custom": Batching(most=8, wait_s=0.5, queue=7)}


def test_overrides_are_checked_as_those_of_every_model(loader: ModelLoader) -> None:
    with pytest.raises(InvalidRequest, match="unknown override 'SCALES': did you mean SCALE"):
        load(loader, overrides={"SCALES": "1"})
    with pytest.raises(InvalidRequest, match="expected float"):
        load(loader, overrides={"SCALE": '"big"'})


def test_a_model_that_needs_a_checkpoint_says_so(loader: ModelLoader) -> None:
    register(CustomModel(path="mine.Needy", load=scaler, needs_checkpoint=True))
    with pytest.raises(InvalidRequest, match=r"mine\.Needy needs a checkpoint"):
        load(loader, model_path="mine.Needy")


def test_a_load_that_returns_something_else_is_named(loader: ModelLoader) -> None:
    register(CustomModel(path="mine.Wrong", load=lambda checkpoint, values: {}))  # pyright: ignore
    with pytest.raises(LoadFailed, match=r"load of mine\.Wrong must return a CustomProgram"):
        load(loader, model_path="mine.Wrong")


def test_memory_counts_while_loaded_and_is_given_back(loader: ModelLoader) -> None:
    needed = load(loader).memory
    tight = ModelLoader(ModelServerConfig(memory_limit_bytes=needed + 1), loader.watch)
    first = load(tight)
    with pytest.raises(MemoryPlanError, match="unload another model"):
        load(tight)
    first.runner.close()
    assert load(tight).memory == needed


def test_a_path_that_is_filtered_out_is_not_loaded(loader: ModelLoader) -> None:
    filtered = ModelServerConfig(model_filter_regex=r"mine\..*")
    choosy = ModelLoader(filtered, loader.watch)
    load(choosy)
    with pytest.raises(ModelPathNotFound, match="llama is known here but not offered") as caught:
        load(choosy, model_path="llama", checkpoint="/nowhere")
    assert "--model_filter_regex" in caught.value.text
