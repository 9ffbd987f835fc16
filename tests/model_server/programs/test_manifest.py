"""What a set says of itself."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from model_server.engine.limits import WindowLimits
from model_server.engine.paging.window_pages import most_window_pages
from model_server.programs.manifest import decode, encode, shape_differences
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.programs.made_here import KEYS, LIMITS, MANIFEST, entry_of

FULL = replace(MANIFEST, programs=(entry_of("2 decodes", "f" * 64, b"machine code"),))


def test_a_manifest_reads_back_and_is_lines_for_people() -> None:
    body = encode(FULL)
    assert decode(body) == FULL
    assert b'\n    "libtpu": "0.0.52"' in body


def test_a_set_stores_the_limits_of_all_parts_in_one_record_by_its_first_names() -> None:
    windows = WindowLimits(every=9, sliding=8, recurrent=True)
    limits = replace(LIMITS, windows=windows, draft_tokens=3)
    stored = json.loads(encode(replace(MANIFEST, limits=limits)))["limits"]
    assert (stored["window"], stored["near_window"], stored["recurrent"]) == (9, 8, True)
    assert stored["guesses"] == 3
    assert not {"windows", "draft_tokens"} & stored.keys()
    assert decode(encode(replace(MANIFEST, limits=limits))).limits == limits


@each_case(
    "body, words",
    [
        (b"{", "not a manifest"),
        (b'{"format": 1}', "not a manifest"),
        (json.dumps({"format": 2, "who": "knows"}).encode(), "has format 2, .* reads format 1"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(body: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        decode(body)


def test_whatever_shapes_a_program_makes_another_set() -> None:
    others = [
        replace(MANIFEST, keys=replace(KEYS, libtpu="0.0.53")),
        replace(MANIFEST, limits=replace(LIMITS, pages=41)),
        replace(MANIFEST, weights="def"),
        replace(MANIFEST, sax="2"),
    ]
    names = {MANIFEST.name, *(other.name for other in others)}
    assert len(names) == 5
    assert all(name.startswith("v5e-1x2-") for name in names)
    assert replace(FULL, made_at="later", made_by="another").name == MANIFEST.name


def test_limits_differ_in_what_shapes_programs() -> None:
    assert shape_differences(LIMITS, replace(LIMITS, pages=1, queue=1)) == []
    assert shape_differences(LIMITS, replace(LIMITS, slots=4)) == [
        "made for slots 2, this server has 4"
    ]


def test_what_changes_the_pages_of_layers_with_a_window_makes_another_set() -> None:
    here = replace(LIMITS, windows=WindowLimits(sliding=8), prefix_cache="off")
    made = replace(here, prefix_cache="tenant")
    words = f"made for {most_window_pages(made)} pages of layers with a window, this server has "
    assert shape_differences(made, here) == [f"{words}{most_window_pages(here)}"]
    assert shape_differences(replace(made, windows=WindowLimits()), LIMITS) == []
