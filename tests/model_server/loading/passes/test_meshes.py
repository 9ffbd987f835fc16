"""Models that make no tokens give the same numbers on several devices as on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.model_server.loading.passes.test_embed_loading import CASES
from tests.model_server.many_devices import results_by_set
from tests.model_server.sentence_folders import golden_sentences

# Inputs are divided over the first two axes, weights over the last two.
BY_DAY = "bert:2x2x2"
OTHERS = (
    "embeddinggemma:2x2x2",
    "bert:8x1x1",
    "bert:1x1x4",
    "llama:1x2x4",
    "modernbert:2x1x3",
    "modernbert:1x1x4",
    "xlm_roberta:1x4x2",
    "qwen3_embedding:4x1x2",
)
EVERY_RUN = [BY_DAY, *(pytest.param(run, marks=pytest.mark.nightly) for run in OTHERS)]
SCRIPT = "tests.model_server.loading.passes.on_meshes"


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    return results_by_set(SCRIPT, tmp_path_factory.mktemp("meshes"), ((BY_DAY,), OTHERS))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", EVERY_RUN)
def test_vectors_on_several_devices_are_the_references(
    run: str, results_of: Callable[[str], Any]
) -> None:
    case, found = run.partition(":")[0], results_of(run)
    if (CASES / case).is_dir():
        wanted = [np.load(CASES / case / "golden.npz")["logits"]]
    else:
        wanted = golden_sentences(case)["vectors"]
    np.testing.assert_allclose(found, wanted, atol=2e-4)
