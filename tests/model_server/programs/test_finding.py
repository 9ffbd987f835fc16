"""What a server says of the programs that it finds or does not find."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from model_server.checkpoints.orbax.folder import Folder
from model_server.config import ModelServerConfig
from model_server.loading.device_memory import layout_for
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.programs.finding import find_ready
from model_server.programs.manifest import Manifest
from model_server.programs.place import SetFolder
from model_server.programs.ready_programs import ReadyPrograms
from model_server.programs.surroundings import digest_of, keys_of
from sax.types import ModelSpec
from tests.model_server.plan.precompile.test_making import SMALL
from tests.model_server.programs.made_here import LIMITS, MANIFEST

PATH = "pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
RECIPE = make_recipe(PATH, None, SMALL)
assert isinstance(RECIPE, Recipe)
LAYOUT = layout_for(RECIPE)
BLUEPRINT = RECIPE.blueprint(LAYOUT)


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def fitting(**changes: Any) -> Manifest:
    from model_server.models.weights.weight import leaf_shapes

    layout = LAYOUT.placed()
    weights = digest_of(leaf_shapes(BLUEPRINT, layout))
    made = replace(MANIFEST, weights=weights, keys=keys_of(layout))
    return replace(made, **changes)


def found(place: Path, programs: str, checkpoint: str = "None", **flags: Any) -> Any:
    spec = ModelSpec(model_id="/sax/test/m", model_path=PATH, checkpoint=checkpoint, replicas=1)
    config = ModelServerConfig(programs=programs, **flags)
    return find_ready(spec, config, BLUEPRINT, LAYOUT.placed(), LIMITS)


def write(place: Path, manifest: Manifest) -> None:
    SetFolder(Folder(str(place)).child("one")).finish(manifest, ())


def test_a_set_that_fits_is_told_with_its_pages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, fitting(limits=replace(LIMITS, pages=30)))
    ready = found(tmp_path, str(tmp_path))
    assert isinstance(ready, ReadyPrograms)
    assert ready.limits.pages == 30
    assert "they are for 30 KV pages, 40 would fit" in caplog.text


def test_a_set_that_does_not_fit_is_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = fitting().keys
    write(tmp_path, fitting(keys=replace(keys, jaxlib="0.1")))
    assert found(tmp_path, str(tmp_path)) is None
    assert (
        f"one, the nearest of 1, was made for jaxlib 0.1, this server has {keys.jaxlib}"
        in caplog.text
    )


def test_a_place_without_sets_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert found(tmp_path, str(tmp_path / "none")) is None
    assert "nothing was compiled for it (sax precompile)" in caplog.text


def test_programs_beside_a_checkpoint_are_taken_only_where_the_flag_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "sax-programs", fitting())
    assert found(tmp_path, "", checkpoint=str(tmp_path)) is None
    assert "are loaded only with --programs: give --programs checkpoint" in caplog.text
    assert found(tmp_path, "checkpoint", checkpoint=str(tmp_path)) is not None
    assert found(tmp_path, "checkpoint") is None  # random weights have no place of their own


def test_a_place_that_everybody_can_write_is_left_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "sets", fitting())
    (tmp_path / "sets").chmod(0o777)
    assert found(tmp_path, str(tmp_path / "sets")) is None
    assert "chmod o-w" in caplog.text
