"""Models of sounds write down the same on several devices as on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.model_server.loading.audio.sounds import check_segments, golden_of
from tests.model_server.many_devices import results_by_set

# Windows are divided over the first two axes. Three heads of the encoder and two of the decoder
# (of the English model four and one) are computed by all devices of the last, if it does not
# divide them.
BY_DAY = "whisper:2x2x2"
OTHERS = (
    "whisper:1x1x3",
    "whisper_english:2x1x4",
    "whisper:1x1x1",
    "whisper:1x2x1",
    "whisper:1x1x2",
    "whisper:1x4x2",
    "whisper:8x1x1",
    "whisper_english:1x1x4",
    "whisper_english:1x1x8",
    "whisper_full_window:1x4x2",
)
EVERY_RUN = [BY_DAY, *(pytest.param(run, marks=pytest.mark.nightly) for run in OTHERS)]
SCRIPT = "tests.model_server.loading.audio.on_meshes"
POSITIONS, LAYERS = {"whisper": 50, "whisper_english": 60, "whisper_full_window": 1500}, 3


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    return results_by_set(SCRIPT, tmp_path_factory.mktemp("meshes"), ((BY_DAY,), OTHERS))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("run", EVERY_RUN)
def test_transcripts_on_several_devices_are_the_references(
    run: str, results_of: Callable[[str], Any]
) -> None:
    found, golden = results_of(run), golden_of(run.partition(":")[0])
    np.testing.assert_allclose(found["states"], golden["states"], atol=1e-4)
    np.testing.assert_allclose(found["logits"], golden["logits"], atol=1e-4)
    wanted = golden["segments_conditioned"]
    check_segments(found["segments"], wanted, found["frames"], found["timestamps"])
    assert found["compiled"] == 0
    _check_plan(run, found)


def _check_plan(run: str, found: Any) -> None:
    """It counts what a device holds."""
    case, _, mesh = run.partition(":")
    replicas, data, model = map(int, mesh.split("x"))
    assert found["devices"] == replicas * data * model == len(found["held"])
    assert set(found["held"]) == {found["planned"]}
    embed, heads = {"whisper": (24, 2), "whisper_english": (20, 1)}.get(case, (16, 2))
    shares = replicas * data * (model if heads % model == 0 else 1)
    positions = -(-POSITIONS[case] // 16) * 16  # as pages hold them
    numbers = 2 * LAYERS * found["rows"] * (positions + 48) * embed
    assert found["state"] == 4 * numbers // shares
