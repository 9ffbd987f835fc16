"""Which set fits a server, and why none does."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from model_server.programs.finding import ProgramNeeds, choose, explain
from model_server.programs.manifest import Manifest
from tests.each_case import each_case
from tests.model_server.programs.made_here import KEYS, LIMITS, MANIFEST

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
