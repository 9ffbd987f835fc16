"""Models of images give the same numbers on several devices as on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.model_server.loading.vision.images import golden_of, logprobs
from tests.model_server.many_devices import results_by_set

BY_DAY = "resnet_basic:2x2x2"
OTHERS = (
    "resnet:1x1x1",
    "resnet:1x2x1",
    "resnet:2x1x2",
    "resnet:1x1x8",
    "resnet_basic:8x1x1",
    "resnet_downsampling:1x4x2",
)
EVERY_RUN = [BY_DAY, *(pytest.param(run, marks=pytest.mark.nightly) for run in OTHERS)]
SCRIPT = "tests.model_server.loading.vision.on_meshes"


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    return results_by_set(SCRIPT, tmp_path_factory.mktemp("meshes"), ((BY_DAY,), OTHERS))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("run", EVERY_RUN)
def test_scores_and_vectors_on_several_devices_are_the_references(
    run: str, results_of: Callable[[str], Any]
) -> None:
    found, golden = results_of(run), golden_of(run.partition(":")[0])
    wanted = {"scores": logprobs(golden["logits"]), "vectors": golden["vectors"]}
    for key, both in wanted.items():
        for batch in found[key]:
            alternating = both[np.arange(len(batch)) % 2]
            np.testing.assert_allclose(batch, alternating, atol=1e-4)
    assert found["compiled"] == 0
    sizes = [int(size) for size in run.partition(":")[2].split("x")]
    assert found["devices"] == np.prod(sizes) == len(found["held"])
    assert set(found["held"]) == {found["planned"]}
