"""The grammar of names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.errors import InvalidName
from sax.names import CellId, ModelId, check_checkpoint, check_model_path, nearest
from tests.each_case import each_case

NAMES = st.from_regex(r"[a-z]+[a-z0-9-_]*", fullmatch=True)


@given(NAMES, NAMES)
def test_a_model_id_reads_back_as_it_was_written(cell: str, model: str) -> None:
    name = ModelId.parse(f"/sax/{cell}/{model}")
    assert (name.cell, name.model, str(name)) == (cell, model, f"/sax/{cell}/{model}")
    assert name.cell_id == CellId.parse(f"/sax/{cell}")


@each_case(
    "text",
    [
        "",
        "smollm2",
        "/sax/test",
        "/sax/test/",
        "/sax//smollm2",
        "/other/test/smollm2",
        "sax/test/smollm2",
        "/sax/Test/smollm2",
        "/sax/test/2b",
        "/sax/test/a b",
        "/sax/test/a\n",
        "/sax/test/smollm2/more",
        "/sax/test/é",
    ],
)
def test_a_malformed_model_id_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidName, match="/sax/test/smollm2") as caught:
        ModelId.parse(text)
    assert caught.value.param == "model"


@given(st.text())
def test_parsing_any_text_gives_a_name_or_invalid_name(text: str) -> None:
    for parse in (ModelId.parse, CellId.parse):
        with suppress(InvalidName):
            assert str(parse(text)) == text


@each_case("text", ["", "/sax", "/sax/", "/sax/test/model", "/sax/1", "test"])
def test_a_malformed_cell_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidName, match=r"e\.g\. /sax/test"):
        CellId.parse(text)


@each_case(
    "check, good, bad",
    [
        (check_model_path, "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest", "2b"),
        (check_model_path, "llama", "a/b"),
        (check_model_path, "a_b-c", ""),
        (check_checkpoint, "None", ""),
        (check_checkpoint, "gs://bucket/a%20b:c=d|e+f", "a b"),
        (check_checkpoint, "/models/smollm2.gguf", "a,b"),
        (check_checkpoint, "x", "é"),
    ],
)
def test_model_paths_and_checkpoints_follow_saxmls_rules(
    check: Callable[[str], str], good: str, bad: str
) -> None:
    assert check(good) == good
    with pytest.raises(InvalidName):
        check(bad)


def test_the_nearest_names_are_offered_best_first() -> None:
    known = ["/sax/test/smollm2", "/sax/test/smollm", "/sax/test/gemma"]
    assert nearest("/sax/test/smollm3", known)[:2] in (known[:2], known[1::-1])
    assert nearest("/sax/prod/gemma2", known)[0] == "/sax/test/gemma"
    assert nearest("/sax/test/smollm", known, limit=1) == ["/sax/test/smollm"]
    assert nearest("/sax/test/zzz", known) == []
    assert nearest("m", ["/sax/a/m", "/sax/b/m"]) == ["/sax/a/m", "/sax/b/m"]
    assert nearest("gemma2", ["a.gemma", "a.gemma22", "a.gemma2int8x16"])[:2] == [
        "a.gemma22",
        "a.gemma2int8x16",
    ]
    assert nearest("LmCloudSpmd2B", ["saxml.server.LmCloudSpmd2BTest"]) == [
        "saxml.server.LmCloudSpmd2BTest"
    ]
