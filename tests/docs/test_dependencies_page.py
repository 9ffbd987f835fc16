"""docs/reference/dependencies.md has a line for each package that sax asks for, and no other."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from sax.distribution import NAME
from tests.docs.blocks import PAGES
from tests.house import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = PAGES["docs/reference/dependencies.md"]


def asked_for() -> dict[str, list[str]]:
    """Section of the page -> the packages that pyproject.toml names there, ours left out."""
    named = {"Base": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return {
        section: [name for text in texts if (name := Requirement(text).name) != NAME]
        for section, texts in named.items()
    }


def test_every_package_has_a_line_in_the_section_of_its_extra() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:-1]  # the last is for developers
    told = {
        each.partition("\n")[0]: re.findall(r"^\| `([\w.-]+)` \|", each, re.MULTILINE)
        for each in sections
    }
    wanted = asked_for()
    assert list(told) == list(wanted)
    assert {name: sorted(rows) for name, rows in told.items()} == {
        name: sorted(packages) for name, packages in wanted.items()
    }


def test_every_package_has_an_oldest_and_a_newest_version() -> None:
    texts = [*PROJECT["dependencies"], *sum(PROJECT["optional-dependencies"].values(), [])]
    named = [each for text in texts if (each := Requirement(text)).name != NAME]
    open_ended = [
        str(each) for each in named if {part.operator for part in each.specifier} != {">=", "<"}
    ]
    assert len(named) > 30
    assert open_ended == []
