"""Loads models that make no tokens on meshes of fake devices; a process of its own.

    python -m tests.model_server.loading.passes.on_meshes RESULTS.json CASE:8x1x1 ...

RESULTS.json holds, by each of these names, the vectors of the case's inputs, or an error.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from model_server.config import ModelServerConfig
from model_server.loading.loader import ModelLoader, make_loader
from model_server.loading.passes.loaded_passes import LoadedEmbedder
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.loading.passes.test_embed_loading import CASES, classifier
from tests.model_server.many_devices import write_results
from tests.model_server.sentence_folders import golden_sentences, sentence_folder


def vectors(loader: ModelLoader, case: str, shape: list[int]) -> list[list[float]]:
    """The case's vectors by a model on such a mesh, in a batch that the devices divide."""
    with tempfile.TemporaryDirectory() as folder:
        is_classifier = (CASES / case).is_dir()
        write = classifier if is_classifier else sentence_folder
        given = {
            "DTYPE": '"float32"',
            "MAX_CONTEXT": "32" if is_classifier else "64",
            "ICI_MESH_SHAPE": json.dumps(shape),
        }
        if is_classifier:
            given["CLASSIFY_ACTIVATION"] = '"none"'
        spec = spec_of(write(Path(folder), case), **given)
        loaded: Any = loader(spec, quiet)
    assert isinstance(loaded, LoadedEmbedder)
    assert loaded.devices == np.prod(shape)
    inputs = inputs_of(loaded, case, is_classifier=is_classifier)
    found = loaded.runner.run([*inputs, *[[5, 6]] * (16 - len(inputs))])
    loaded.runner.close()
    return found[: len(inputs)]


def inputs_of(loaded: LoadedEmbedder, case: str, *, is_classifier: bool) -> list[list[int]]:
    if is_classifier:
        return [np.load(CASES / case / "golden.npz")["prompt"].tolist()]
    return [loaded.tokenizer.encode(text) for text in golden_sentences(case)["texts"]]


def main() -> None:
    loader = make_loader(ModelServerConfig())
    write_results(lambda case, shape: vectors(loader, case, shape))
    loader.watch.stop()


if __name__ == "__main__":
    main()
