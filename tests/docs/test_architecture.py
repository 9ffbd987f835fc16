"""docs/explanation/architecture.md names every room, and its walks are as short as they promise."""

from __future__ import annotations

import re

import pytest

from tests import house
from tests.each_case import each_case

TEXT = house.PAGE.read_text()
WALKS = re.findall(r"^## The walk of a (\w+)\n(.*?)(?=^## )", TEXT, re.DOTALL | re.MULTILINE)
LONGEST = 12


@pytest.mark.extended
def test_every_room_has_its_sentence() -> None:
    rooms = {folder for folder in house.packages() if "proto" not in folder}
    named = set(re.findall(r"^(?:\| |### )`([\w/]+)/`", TEXT, re.MULTILINE))
    assert rooms - named == set()


def test_there_are_four_walks() -> None:
    assert [name for name, _ in WALKS] == ["request", "publish", "load", "step"]


@each_case("name, text", WALKS)
def test_a_walk_names_few_files(name: str, text: str) -> None:
    steps = re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE)
    assert 8 < len(steps) <= LONGEST
    assert len(set(steps)) == len(steps)


@pytest.mark.parametrize(("walk", "most"), [("the load of", 25), ("`sax plan`", 18)])
def test_the_long_walks_enter_few_files(walk: str, most: int) -> None:
    _, _, rest = TEXT.partition(f"Every file that {walk}")
    listed = re.split(r"^(?:Every file|## )", rest, maxsplit=1, flags=re.MULTILINE)[0]
    assert len(re.findall(r"\w+\.py", listed)) <= most
