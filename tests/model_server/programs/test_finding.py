"""Which set of programs fits a server, and what it says of those that it finds or not."""

from __future__ import annotations

import dataclasses
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
from model_server.programs.finding import ProgramNeeds, choose, explain, find_ready
from model_server.programs.manifest import Manifest
from model_server.programs.place import SetFolder
from model_server.programs.ready_programs import ReadyPrograms
from model_server.programs.surroundings import digest_of, keys_of
from sax.types import ModelSpec
from tests.each_case import each_case
from tests.model_server.plan.precompile.test_making import SMALL
from tests.model_server.programs.made_here import KEYS, LIMITS, MANIFEST

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


WANTED = ProgramNeeds(weights="abc", keys=KEYS, limits=LIMITS, pages_are_given=False, sax="1 (abc)")


def with_pages(pages: int, **changes: str) -> Manifest:
    return replace(MANIFEST, limits=replace(LIMITS, pages=pages), **changes)


def test_the_set_with_the_most_pages_that_fit_is_taken() -> None:
    sets = {"few": with_pages(30), "fit": with_pages(39), "many": with_pages(41)}
    assert choose(sets, WANTED) == "fit"


def test_of_equal_sets_the_one_of_the_same_sources_then_the_newest_is_taken() -> None:
    sets = {
        "old": with_pages(40, made_at="2025"),
        "new": with_pages(40, made_at="2026"),
        "other": with_pages(40, made_at="2027", sax="2"),
    }
    assert choose(sets, WANTED) == "new"


def test_a_set_for_the_same_draft_model_comes_first_and_any_other_serves_too() -> None:
    sets = {"alone": with_pages(40), "same": with_pages(30, draft="d"), "other": with_pages(39)}
    drafted = dataclasses.replace(WANTED, draft="d")
    assert choose(sets, drafted) == "same"
    assert choose({"alone": sets["alone"]}, drafted) == "alone"
    assert choose(sets, WANTED) == "alone"


def test_pages_that_a_flag_gives_must_be_those_of_the_set() -> None:
    given = ProgramNeeds(weights="abc", keys=KEYS, limits=LIMITS, pages_are_given=True, sax="")
    sets = {"few": with_pages(30)}
    assert choose(sets, given) is None
    assert explain(sets, given) == (
        "few, the nearest of 1, was made for 30 KV pages, --kv_cache_bytes gives 40"
    )
    assert choose({"same": with_pages(40)}, given) == "same"


@each_case(
    "made, words",
    [
        (with_pages(41), "made for 41 KV pages, this server has memory for 40"),
        (
            replace(MANIFEST, keys=replace(KEYS, libtpu="0.0.51")),
            "made for libtpu 0.0.51, this server has 0.0.52",
        ),
        (
            replace(MANIFEST, limits=replace(LIMITS, slots=4)),
            "made for slots 4, this server has 2",
        ),
    ],
)
def test_what_keeps_a_set_from_being_run_is_told(made: Manifest, words: str) -> None:
    assert choose({"a": made}, WANTED) is None
    assert explain({"a": made}, WANTED) == f"a, the nearest of 1, was {words}"


def test_the_set_that_differs_in_least_is_explained() -> None:
    far = replace(MANIFEST, keys=replace(KEYS, libtpu="0.0.1", jax="0.9", mesh="1x1x4"))
    near = replace(MANIFEST, keys=replace(KEYS, jax="0.9"))
    assert explain({"far": far, "near": near}, WANTED) == (
        "near, the nearest of 2, was made for jax 0.9, this server has 0.10.2"
    )


def test_sets_of_other_models_are_named() -> None:
    other = replace(MANIFEST, model="gemma", weights="xyz")
    assert choose({"a": other}, WANTED) is None
    assert explain({"a": other}, WANTED) == (
        "the sets there are for other models or meshes (gemma on v5e:1x2)"
    )
