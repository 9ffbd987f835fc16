"""The distribution has one name, and every text that names it, or an extra of it, is right."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from sax import distribution
from sax.distribution import NAME, how_to_install, version
from tests.house import ROOT

WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = WHOLE["project"]
EXTRAS = PROJECT["optional-dependencies"]
# `pip install '.[cpu]'`, `uvx --from 'NAME[cpu]'`, dist/NAME-0.1.0-....whl[cpu]
_EXTRA = re.compile(rf"(?:(?<=['\" ])\.|\b{NAME}|\.whl)\[([a-z0-9,]+)\]")
# A command that fetches packages by their names, to its end: of a line, a comment or a quotation.
_FETCHES = re.compile(
    r"\b(pip3? (?:install|download)|uvx|uv (?:add|tool run|tool install)|pipx (?:run|install)|"
    r"npm install|npx)"
    r"((?: +(?:'[^'\n]+'|\"[^\"\n]+\"|[^\s'\"`;|&)\\]+))+)"
)
_OF_ONE = ("uvx", "uv tool run", "pipx run", "npx")  # what follows the package is its command
_NAMES_IT = ("--from", "--spec")
_WITH_VALUE = (
    *("-r", "--group", "--dest", "--prefix", "--python", "--index-url", "--target"),
    "--find-links",
)
_WORD = re.compile(r"[^\s'\"]+|(?<=')[^']+(?=')|(?<=\")[^\"]+(?=\")")
_PROSE = ("in", "or", "with", "into")  # goes on behind a command
# Other makers' packages that a text of ours has somebody fetch, beside those of pyproject.toml.
_FOREIGN = {
    *("@anthropic-ai/claude-code", "@openai/codex", "opencode-ai", "@qwen-code/qwen-code"),
    *("aider-chat", "@modelcontextprotocol/server-filesystem", "llama-cpp-python", "pip"),
    *("pocketsphinx", "torch", "typescript"),
}
_LIKE_OURS = re.compile(r"\bsax[-_]serv(?:e|er|ing)\b(?=[\[='\"` ]|-\d)")


@cache
def texts() -> list[tuple[str, str]]:
    """Every text of the product and its pages, with its path."""
    kinds = ("*.py", "*.md", "*.toml", "*.yml", "*.yaml", "*.sh", "Makefile", "Dockerfile")
    listed = subprocess.run(
        ("git", "ls-files", "--cached", "--others", "--exclude-standard", *kinds),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    return [(name, (ROOT / name).read_text()) for name in files]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an installation of version 9.8, before any other on the path."""
    folder = tmp_path / f"{NAME.replace('-', '_')}-9.8.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {NAME}\nVersion: 9.8\n")
    monkeypatch.syspath_prepend(tmp_path)
    version.cache_clear()
    yield folder
    version.cache_clear()


def test_the_name_is_that_of_the_project_and_no_foreign_one() -> None:
    assert PROJECT["name"] == NAME != "sax"
    assert PROJECT["scripts"][NAME] == PROJECT["scripts"]["sax"]


def test_extras_that_are_made_of_others_name_them_rightly() -> None:
    named = [Requirement(text) for extra in EXTRAS.values() for text in extra]
    ours = [each for each in named if each.name.startswith("sax")]
    assert {each.name for each in ours} == {NAME}
    assert {extra for each in ours for extra in each.extras} <= set(EXTRAS)
    assert {"cpu", "tpu", "cuda", "media", "all"} <= set(EXTRAS)
    (all_of_them,) = map(Requirement, EXTRAS["all"])
    assert all_of_them.extras == set(EXTRAS) - {"all", "tpu", "cuda", "torch"}, "all for CPUs"


def test_every_text_that_names_an_extra_names_one_of_ours() -> None:
    others = "tests/k8s/page/test_pages.py"  # has a wrong one, which its check must find
    told = [(path, text) for path, text in texts() if path != others]
    named = [(path, each) for path, text in told for each in _EXTRA.findall(text)]
    assert len(named) > 15
    assert [each for each in named if not set(each[1].split(",")) <= set(EXTRAS)] == []


def test_every_text_that_names_the_distribution_has_its_name() -> None:
    named = [(path, each[0]) for path, text in texts() for each in _LIKE_OURS.finditer(text)]
    assert len(named) > 10
    assert [each for each in named if each[1] not in (NAME, NAME.replace("-", "_"))] == []


def fetched(text: str) -> Iterator[str]:
    """Yield the names of what the commands in a text fetch; not folders, files and variables."""
    for command, rest in _FETCHES.findall(text):
        words = iter(_WORD.findall(rest.split(" #")[0]))
        for word in words:
            if word in _PROSE:
                break
            if word in _WITH_VALUE:
                next(words, "")
            named = next(words, "") if word in _NAMES_IT else word
            if found := re.match(r"(@[\w-]+/)?[A-Za-z][\w.-]*(?=$|[\[=<>~@! ])", named):
                yield found[0].rstrip(".")
            if (found and command in _OF_ONE) or named.endswith("."):
                break


def test_what_a_command_fetches_is_read_off_it() -> None:
    text = """pip install 'a[b]>=1' c --group d  # e
    `uvx --from 'f[cpu]' sax run m`, "npx -y @g/h ." (pip install '.[cpu]' "$(ls *.whl)" -r i.txt)
    Needs: pip install j. If k, pip install '.[cpu]' in a clone"""
    assert list(fetched(text)) == ["a", "c", "f", "@g/h", "j"]


def test_no_text_has_anybody_fetch_a_package_that_is_not_ours_or_well_known_to_us() -> None:
    """The package `sax` of the public index is another project's, and its code would run."""
    groups = [*EXTRAS.values(), *WHOLE["dependency-groups"].values(), PROJECT["dependencies"]]
    asked = {Requirement(text).name for group in groups for text in group if isinstance(text, str)}
    known = {canonicalize_name(each) for each in (NAME, *asked, *_FOREIGN)}
    here = "tests/sax/test_distribution.py"  # has others
    told = [(path, text) for path, text in texts() if path != here]
    named = [(path, each) for path, text in told for each in fetched(text)]
    assert len(named) > 30
    assert [each for each in named if canonicalize_name(each[1]) not in known] == []


def test_an_installation_tells_its_version(installed: Path) -> None:
    assert version() == "9.8"
    version.cache_clear()
    (installed / "METADATA").unlink()
    installed.rmdir()
    assert version() == PROJECT["version"], "a clone has that of its pyproject.toml"


def test_what_came_from_an_index_by_name_gets_more_from_there_and_a_clone_from_itself(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert how_to_install("cpu") == "pip install '.[cpu]' in a clone of sax"
    monkeypatch.setattr(distribution, "_PROJECT", installed / "pyproject.toml")
    assert how_to_install("cpu") == f"pip install '{NAME}[cpu]'"
    (installed / "direct_url.json").write_text('{"url": "file:///src/sax", "dir_info": {}}')
    assert how_to_install("cpu") == "pip install '.[cpu]' in a clone of sax"


def test_a_clone_knows_no_commit_of_a_wheel() -> None:
    assert distribution.commit() == ""
    assert distribution.clone() == ROOT


def test_the_versions_of_python_are_those_of_ci() -> None:
    marks = (re.fullmatch(r".* :: (3\.\d+)", text) for text in PROJECT["classifiers"])
    named = [found[1] for found in marks if found]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert f"python: {named}".replace("'", '"') in workflow
    assert all(each in SpecifierSet(PROJECT["requires-python"]) for each in named)
    assert "3.10" not in SpecifierSet(PROJECT["requires-python"])
