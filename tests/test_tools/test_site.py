"""The site has every page, loads nothing from elsewhere, and keeps each version."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.house import ROOT
from tests.images.locks import PROJECT, read_lock
from tests.tools import site
from tests.tools.site import BrokenSite, check_built, navigation, pages, publish, write_source

INDEX = """# Documentation

## How-to

Run a cell:

- [Installing](how_to/installing.md): wheels

Use models:

- [Sounds](how_to/audio.md): transcribe

## Reference

- [Errors](reference/errors.md): every error
"""


def built(folder: Path, page: str = "<p>all</p>") -> Path:
    """Write a site that has every page of the tree."""
    for name in pages():
        place = folder / site.address(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(page)
    (folder / "search.json").write_text("{}")
    return folder


def test_shelves_and_their_groups_become_the_navigation() -> None:
    nav = tomllib.loads(f"nav = {navigation(INDEX, ['README.md', 'CHANGELOG.md', 'docs/a.md'])}")
    assert nav["nav"] == [
        {"Home": "README.md"},
        {
            "How-to": [
                {"Run a cell": [{"Installing": "docs/how_to/installing.md"}]},
                {"Use models": [{"Sounds": "docs/how_to/audio.md"}]},
            ]
        },
        {"Reference": [{"Errors": "docs/reference/errors.md"}]},
        {"More": ["docs/index.md", "CHANGELOG.md"]},
    ]


def test_the_source_has_every_page_once_and_all_that_they_link_to(tmp_path: Path) -> None:
    write_source(tmp_path)
    config = (tmp_path / "zensical.toml").read_text()
    assert tomllib.loads(config)["project"]["theme"]["font"] is False
    assert [page for page in pages() if config.count(f'"{page}"') != 1] == []
    family = "model_server/models/families/gemma.py"
    assert (tmp_path / "source" / family).read_text() == (ROOT / family).read_text()


def test_a_link_to_nothing_is_refused_by_the_name_of_its_page(
    tmp_path: Path,
) -> None:
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        (tmp_path / name).write_text("[a file](sax/gone.py)")
    with pytest.raises(BrokenSite, match=r"README\.md links to sax/gone\.py"):
        write_source(tmp_path / "made", tmp_path)


def test_a_page_that_loads_something_from_elsewhere_is_refused(tmp_path: Path) -> None:
    check_built(built(tmp_path))
    for page in (
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<img src="//pictures.example/a.png">',
        '<pre class="mermaid">graph</pre>',
    ):
        built(tmp_path, page)
        with pytest.raises(BrokenSite, match="loads"):
            check_built(tmp_path)
    check_built(built(tmp_path, '<a href="https://example.org">elsewhere</a>'))


def test_a_page_or_a_search_that_is_missing_is_refused(tmp_path: Path) -> None:
    built(tmp_path)
    (tmp_path / "docs" / "reference" / "errors" / "index.html").unlink()
    with pytest.raises(BrokenSite, match=r"docs/reference/errors\.md"):
        check_built(tmp_path)
    (built(tmp_path) / "search.json").unlink()
    with pytest.raises(BrokenSite, match="search"):
        check_built(tmp_path)


def test_versions_stand_together_and_the_newest_release_comes_first(tmp_path: Path) -> None:
    served, new = tmp_path / "served", tmp_path / "new"
    (new / "docs").mkdir(parents=True)
    (new / "search.json").write_text("{}")
    for version in ("main", "v0.9.0", "v0.10.0", "v0.2.0"):
        (new / "index.html").write_text(version)
        publish(new, served, version)
    listed = json.loads((served / "versions.json").read_text())
    assert [each["version"] for each in listed] == ["v0.10.0", "v0.9.0", "v0.2.0", "main"]
    assert [each["aliases"] for each in listed] == [["latest"], [], [], []]
    assert "url=v0.10.0/" in (served / "index.html").read_text()
    (new / "index.html").write_text("mended")
    publish(new, served, "v0.9.0")
    assert (served / "v0.9.0" / "index.html").read_text() == "mended"
    assert (served / "v0.2.0" / "index.html").read_text() == "v0.2.0"


def test_the_locked_builder_is_one_that_the_group_asks_for() -> None:
    (asked,) = map(Requirement, PROJECT["dependency-groups"]["site"])
    pin = read_lock("site")[asked.name]
    assert pin.version in asked.specifier
    assert pin.hashes
