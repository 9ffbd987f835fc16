"""Models of images through the real loader: goldens, batches, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.config import ModelServerConfig
from model_server.loading.loaded_batches import ONLY
from model_server.loading.loader import ModelLoader, make_loader
from model_server.loading.vision.loaded_vision import LoadedVision
from sax.errors import CheckpointError, InvalidRequest, LoadFailed, MemoryPlanError, SaxError
from tests.model_server.loading.loads import spec_of
from tests.model_server.loading.vision.images import (
    golden_of,
    load,
    logprobs,
    pixels_of,
    write_case,
)
from tests.tools.golden.images import CASES, thinned

SAXML = "pax.vision.params.resnet.ImageNetResNet50"


@pytest.fixture(scope="module")
def loader() -> Iterator[ModelLoader]:
    made = make_loader(ModelServerConfig(queue=7, strict_compile=True))
    yield made
    made.watch.stop()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a golden case."""
    root = tmp_path_factory.mktemp("resnets")

    def folder(name: str) -> Path:
        made = root / name
        if not made.exists():
            write_case(name, made)
        return made

    return folder


@pytest.mark.parametrize("name", CASES)
def test_pixels_scores_and_vectors_are_those_of_the_reference(
    loader: ModelLoader, folders: Callable[[str], Path], name: str
) -> None:
    golden = golden_of(name)
    loaded = load(loader, folders(name), BATCH_SIZE=2)
    assert isinstance(loaded, LoadedVision)
    images = [pixels_of(golden[f"image_{n}"], loaded) for n in (0, 1)]
    form = json.loads((folders(name) / "preprocessor_config.json").read_text())
    scaled = (images[0] / 255 - form["image_mean"]) / form["image_std"]
    np.testing.assert_allclose(thinned(scaled.transpose(2, 0, 1)), golden["pixels"], atol=1e-5)
    wanted = logprobs(golden["logits"])
    for together in ([0], [1, 0]):
        seen = loaded.runner.run([images[n] for n in together])
        for n, each in zip(together, seen, strict=True):
            np.testing.assert_allclose(each.scores, wanted[n], atol=1e-4)
            np.testing.assert_allclose(each.vector, golden["vectors"][n], atol=1e-4)
    assert loaded.labels == tuple(CASES[name][0]["id2label"].values())
    assert loaded.top_k == min(5, len(loaded.labels))
    assert loader.compiles_while_serving() == 0
    loaded.runner.close()


def test_lower_precision_stays_near(loader: ModelLoader, folders: Callable[[str], Path]) -> None:
    golden = golden_of("resnet_basic")
    loaded = load(loader, folders("resnet_basic"), "resnet", DTYPE="bfloat16", BATCH_SIZE=1)
    (seen,) = loaded.runner.run([pixels_of(golden["image_0"], loaded)])
    np.testing.assert_allclose(seen.scores, logprobs(golden["logits"][0]), rtol=0.05)
    loaded.runner.close()


def changed(folder: Path, into: Path, file: str, **values: Any) -> Path:
    """A copy of a checkpoint with other values in one of its files; None: without the key."""
    shutil.copytree(folder, into)
    config = json.loads((into / file).read_text()) | values
    kept = {key: value for key, value in config.items() if value is not None}
    (into / file).write_text(json.dumps(kept))
    return into


FORM, CONFIG = "preprocessor_config.json", "config.json"
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "processor": (FORM, {"image_processor_type": "ViTImageProcessor"}, "processors of ConvNext"),
    "key": (FORM, {"do_flip": True}, "not supported: do_flip"),
    "resize": (FORM, {"do_resize": False}, "do_resize = False; supported: true"),
    "cut": (FORM, {"do_center_crop": True}, "do_center_crop = True; supported: false"),
    "size": (FORM, {"size": {"height": 3, "width": 4}}, "size = .*supported: a shortest_edge"),
    "huge": (FORM, {"size": 10**6}, "size = 1000000"),
    "share": (FORM, {"crop_pct": 1e-9}, "crop_pct = 1e-09"),
    "mean": (FORM, {"image_mean": [0, "a", 0]}, "image_mean"),
    "deviation": (FORM, {"image_std": [0, 1, 1]}, "image_std .* other than 0"),
    "filter": (FORM, {"resample": 9}, "resample = 9"),
    "layers": (CONFIG, {"layer_type": "wide"}, "layer_type = 'wide'"),
    "depths": (CONFIG, {"depths": [2, 1]}, "one of each a stage"),
    "deep": (CONFIG, {"depths": [60000, 1, 3]}, "at most 1000 blocks"),
    "zero": (CONFIG, {"depths": [0, 1, 3]}, "sizes from 1"),
    "width": (CONFIG, {"hidden_sizes": [28, 44, 64]}, "the configuration says"),
    "blocks": (CONFIG, {"depths": [2, 1, 4]}, "the checkpoint lacks resnet.encoder.stages.2"),
    "activation": (CONFIG, {"hidden_act": "sine"}, "activation 'sine' is not supported"),
    "unknown": (CONFIG, {"use_attention": True}, "use_attention"),
    "labels": (CONFIG, {"id2label": {"0": "a"}}, "classifier.1"),
}


def test_a_checkpoint_that_is_not_understood_is_refused_by_name(
    loader: ModelLoader, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    for name, (file, values, words) in WRONG.items():
        folder = changed(folders("resnet"), tmp_path / name, file, **values)
        with pytest.raises(CheckpointError, match=words):
            load(loader, folder, "resnet")


def test_a_checkpoint_without_its_processor_says_what_to_add(
    loader: ModelLoader, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = changed(folders("resnet"), tmp_path / "it", FORM)
    (folder / FORM).unlink()
    with pytest.raises(CheckpointError, match=r"has no preprocessor_config\.json.*put it beside"):
        load(loader, folder)


PUBLISHED: list[tuple[str, dict[str, Any], type[SaxError], str]] = [
    (SAXML, {}, CheckpointError, 'ResNet-50 with embed 64.*publish it as "resnet"'),
    ("llama", {}, CheckpointError, "hidden_sizes|resnet"),
    ("resnet", {"TOP_K": 0}, InvalidRequest, "TOP_K is 0"),
    ("resnet", {"IMAGE_SIZE": 8}, InvalidRequest, "IMAGE_SIZE is 8"),
    ("resnet", {"BATCH_SIZE": 0}, InvalidRequest, "BATCH_SIZE is 0"),
    ("resnet", {"DTYPE": "int8"}, InvalidRequest, "DTYPE must be"),
    ("resnet", {"MAX_CONTEXT": 5}, InvalidRequest, "unknown override 'MAX_CONTEXT'"),
    ("resnet", {"ICI_MESH_SHAPE": [2]}, InvalidRequest, "give three sizes"),
    ("resnet", {"ICI_MESH_SHAPE": [1, 8, 8]}, MemoryPlanError, "needs 64 devices"),
    ("resnet", {"NUM_STAGES": 2}, InvalidRequest, "one stage.*by ICI_MESH_SHAPE"),
    ("auto", {"QUANTIZE": "int8"}, InvalidRequest, "unknown override 'QUANTIZE'"),
]


def test_a_publish_that_cannot_be_says_why(
    loader: ModelLoader, folders: Callable[[str], Path]
) -> None:
    for path, values, error, words in PUBLISHED:
        with pytest.raises(error, match=words):
            load(loader, folders("resnet"), path, **values)


def test_a_family_needs_a_checkpoint(loader: ModelLoader) -> None:
    with pytest.raises(InvalidRequest, match="takes its sizes from a checkpoint"):
        load(loader, "None", "resnet")


def test_memory_is_planned_before_weights_are_read(loader: ModelLoader) -> None:
    tight = ModelLoader(ModelServerConfig(memory_limit_bytes=1000), loader.watch)
    phases: list[str] = []
    with pytest.raises(MemoryPlanError, match="does not fit"):
        tight(spec_of("None", SAXML, IMAGE_SIZE="32"), lambda each: phases.append(each.phase))
    assert "drawing weights" not in phases


def test_without_pillow_the_load_says_what_to_install(
    loader: ModelLoader, folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LoadFailed, match=r"pip install '\.\[media\]'"):
        load(loader, folders("resnet"))


@pytest.mark.nightly
def test_saxmls_class_has_random_weights_that_its_name_decides(loader: ModelLoader) -> None:
    loaded = load(loader, "None", SAXML)
    assert (loaded.form.size, loaded.batching[ONLY].most, loaded.top_k) == (224, 1, 5)
    assert loaded.parts.weights == pytest.approx(4 * 25.5e6, rel=0.01)
    image = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    (seen,) = loaded.runner.run([image])
    assert np.exp(seen.scores.astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)
    assert seen.vector.shape == (2048,)
    loaded.runner.close()
    (again,) = load(loader, "None", SAXML).runner.run([image])
    np.testing.assert_array_equal(again.scores, seen.scores)
