"""docs/explanation/architecture.md names every room, and its walks are as short as they promise."""

from __future__ import annotations

import re

import pytest

from tests import house
from tests.docs.walks import lines_of, walks, written

TEXT = house.PAGE.read_text()
WALKS = [*walks(TEXT)]
MOST = {"request": 22, "publish": 12, "load": 18, "step": 10, "temperature": 15}  # files
TOLERANCE = 15  # lines by which a file may change before the page is written anew


@pytest.mark.extended
def test_every_room_has_its_sentence() -> None:
    rooms = {folder for folder in house.packages() if "proto" not in folder}
    named = set(re.findall(r"^(?:\| |### )`([\w/]+)/`", TEXT, re.MULTILINE))
    assert rooms - named == set()


def test_there_are_five_walks() -> None:
    assert [walk.name for walk in WALKS] == list(MOST)


def test_a_walk_enters_few_files_and_lines() -> None:
    """Whole files: a reader who knows how such servers work holds them in mind for an afternoon."""
    for name, listed in WALKS:
        assert 8 < len(listed) <= MOST[name], name
    request = next(walk for walk in WALKS if walk.name == "request")
    assert request.lines <= 4500, "move what a plain chat does not need out of its files"


def test_the_lines_that_a_walk_lists_are_about_right() -> None:
    off = [
        f"{file}: {listed} on the page, {lines_of(file)} here (python -m tests.docs.walks)"
        for walk in WALKS
        for file, listed in walk.listed.items()
        if abs(listed - lines_of(file)) > TOLERANCE
    ]
    assert off == []


def test_numbers_that_are_written_anew_are_those_of_the_tree() -> None:
    stale = re.sub(r"(\.py` \|) \d+ \|", r"\1 1 |", TEXT)
    assert stale != TEXT
    assert all(
        listed == lines_of(file)
        for walk in walks(written(stale))
        for file, listed in walk.listed.items()
    )


def test_the_walk_of_a_plan_enters_few_files() -> None:
    _, _, rest = TEXT.partition("Every file that `sax plan`")
    listed = re.split(r"^(?:Every file|## )", rest, maxsplit=1, flags=re.MULTILINE)[0]
    assert 12 < len(re.findall(r"\w+\.py", listed)) <= 18
