"""Builds the docs as a site, from the Markdown that GitHub shows: `make site`.

    python -m tests.tools.site source FOLDER    # what the builder reads
    python -m tests.tools.site check FOLDER               # of what it wrote
    python -m tests.tools.site publish BUILT PAGES VERSION

`source` keeps the shape of the tree, so that every relative link works as it does on GitHub.
`publish` puts a version beside the others in a folder that is served as it is.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

from tests.house import ROOT

_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"\]\(([\w./-]+)(?:#[\w-]*)?\)")
_SHELF = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"^- \[(.+?)\]\((.+?\.md)\)|^(\w[\w ]*):$", re.MULTILINE)
_CONFIG = """[project]
site_name = "sax"
site_description = "Serves language models with JAX, from a laptop to many TPU slices"
docs_dir = "source"
site_dir = "built"
nav = {nav}

[project.theme]
font = false
features = ["navigation.tabs", "navigation.top", "search.highlight", "content.code.copy"]

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle = {{ icon = "lucide/sun-moon", name = "Light" }}

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle = {{ icon = "lucide/sun", name = "Dark" }}

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle = {{ icon = "lucide/moon", name = "As the system" }}

[project.extra.version]
provider = "mike"

[project.validation]
invalid_links = true
invalid_link_anchors = true

[project.markdown_extensions.tables]
[project.markdown_extensions.md_in_html]
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.pymdownx.superfences]
[project.markdown_extensions.toc]
permalink = true
[project.markdown_extensions.toc.slugify]
object = "pymdownx.slugs.slugify"
kwds = {{ case = "lower" }}  # the anchors that GitHub makes
"""


class BrokenSite(Exception):
    """A page names what is not there, or loads what is elsewhere."""


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["source", folder]:
            write_source(Path(folder))
        case ["check", folder]:
            check_built(Path(folder))
        case ["publish", built, pages, version]:
            publish(Path(built), Path(pages), version)
        case _:
            sys.exit(__doc__)


def pages(root: Path = ROOT) -> list[str]:
    """Return every page, as paths below the root."""
    found = (path for place in ("docs", "examples") for path in (root / place).rglob("*.md"))
    return [*_TOP, *sorted(path.relative_to(root).as_posix() for path in found)]


def write_source(folder: Path, root: Path = ROOT) -> None:
    """Copy the pages, and every file that they link to. Raises BrokenSite."""
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    for page in pages(root):
        text = (root / page).read_text()
        _copy(root, source, page)
        for name in _LINK.findall(text):
            linked = (root / page).parent.joinpath(name).resolve()
            if not linked.is_file() or not linked.is_relative_to(root):
                raise BrokenSite(f"{page} links to {name}, which is no file of the tree")
            _copy(root, source, linked.relative_to(root).as_posix())
    nav = navigation((root / "docs" / "index.md").read_text(), pages(root))
    (folder / "zensical.toml").write_text(_CONFIG.format(nav=nav))


def _copy(root: Path, source: Path, name: str) -> None:
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(root / name, source / name)


def navigation(index: str, pages: Sequence[str]) -> str:
    """Return the value of `nav` in TOML: shelves, groups of a shelf, pages with their titles.

    index: the text of docs/index.md. pages: paths below the root, of which those that are not below
    docs/ come at the end.
    """
    shelves = [_table(title, list(_entries(text))) for title, text in _SHELF.findall(index)]
    others = [each for each in pages if not each.startswith("docs/") and each != "README.md"]
    more = ["docs/index.md", *others]
    return f"[{', '.join([_page('Home', 'README.md'), *shelves, _table('More', _quoted(more))])}]"


def _entries(text: str) -> Iterator[str]:
    """Yield the pages of a shelf, in their groups where it has groups."""
    group, inside = "", list[str]()
    for title, page, heading in _ENTRY.findall(text):
        if heading:
            yield from _closed(group, inside)
            group, inside = heading, []
        else:
            inside.append(_page(title, f"docs/{page}"))
    yield from _closed(group, inside)


def _closed(group: str, inside: list[str]) -> list[str]:
    return [_table(group, inside)] if group and inside else inside


def _page(title: str, path: str) -> str:
    return f"{{ {json.dumps(title)} = {json.dumps(path)} }}"


def _table(title: str, entries: Sequence[str]) -> str:
    return f"{{ {json.dumps(title)} = [{', '.join(entries)}] }}"


def _quoted(pages: Sequence[str]) -> list[str]:
    return [json.dumps(page) for page in pages]


def check_built(folder: Path) -> None:
    """Raise BrokenSite if a page loads something from elsewhere, or is missing."""
    written = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.html")}
    for name, path in written.items():
        loaded = _Loaded()
        loaded.feed(path.read_text())
        if loaded.elsewhere:
            raise BrokenSite(f"{name} loads {', '.join(loaded.elsewhere)}")
    missing = [page for page in pages() if address(page) not in written]
    if missing:
        raise BrokenSite(f"not built: {', '.join(missing)}")
    if not (folder / "search.json").exists():
        raise BrokenSite("there is no index to search: search.json")


def address(page: str) -> str:
    """Return where a page is built, below the site."""
    stem = page.removesuffix(".md")
    for index in ("README", "index"):
        if stem == index or stem.endswith(f"/{index}"):
            return f"{stem.removesuffix(index)}index.html"
    return f"{stem}/index.html"


class _Loaded(HTMLParser):
    """Collects what a page loads from elsewhere: scripts, styles, pictures, frames."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        place = given.get("src") or (given.get("href") if tag == "link" else None) or ""
        if place.startswith(("http:", "https:", "//")) and given.get("rel") != "canonical":
            self.elsewhere.append(place)
        # The theme would fetch what draws these.
        if "mermaid" in (given.get("class") or "").split():
            self.elsewhere.append("mermaid's script")


def publish(built: Path, served: Path, version: str) -> None:
    """Put a version into the folder of all versions, and make `latest` the newest release."""
    shutil.rmtree(served / version, ignore_errors=True)
    shutil.copytree(built, served / version)
    names = sorted(_versions(served), key=_order, reverse=True)
    newest = names[0]
    listed = [
        {"version": name, "title": name, "aliases": ["latest"] if name == newest else []}
        for name in names
    ]
    (served / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")
    (served / "index.html").write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={newest}/">'
        f'<a href="{newest}/">sax {newest}</a>\n'
    )
    (served / ".nojekyll").touch()


def _versions(served: Path) -> Iterator[str]:
    return (path.parent.name for path in served.glob("*/search.json"))


def _order(name: str) -> tuple[int, ...]:
    """Put releases in order, and what is none (`main`) behind all of them."""
    if not re.fullmatch(r"v?\d+(\.\d+)*", name):
        return ()
    return tuple(map(int, name.removeprefix("v").split(".")))


if __name__ == "__main__":
    main(sys.argv[1:])
