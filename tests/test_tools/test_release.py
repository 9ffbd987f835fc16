"""A release is cut from its tag, and what is built is held against what a wheel must have."""

from __future__ import annotations

import hashlib
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.each_case import each_case
from tests.house import ROOT
from tests.tools.release.cutting import (
    CannotCut,
    cut_changelog,
    cut_images,
    cut_project,
    notes_of,
    version_in,
    version_of,
)
from tests.tools.release.distributions import SUMS, write_sums, wrong_with, wrong_with_library
from tests.tools.release.provenance import statement
from tests.tools.release.tree import copy_tree, cut

CHANGELOG = """# Changelog

## [Unreleased]

### Added

- A doctor.

## [0.1.0] - 2026-10-01

- The first.
"""
WHOLE = ("sax/commit.txt", "sax/py.typed", "sax/look/look.css", "k8s/control/http.yaml")


@each_case("tag, version", [("v1.2.3", "1.2.3"), ("0.2.0", "0.2.0"), ("v1.0.0rc1", "1.0.0rc1")])
def test_a_tag_names_a_version(tag: str, version: str) -> None:
    assert version_of(tag) == version


@each_case("tag", ["v1.2", "latest", "v1.2.3.dev0", "v1.2.3-1", ""])
def test_another_tag_is_refused(tag: str) -> None:
    with pytest.raises(CannotCut, match="names no version"):
        version_of(tag)


def test_what_was_unreleased_gets_the_version_and_its_notes_are_that_section() -> None:
    made = cut_changelog(CHANGELOG, "0.2.0", "2026-11-29")
    assert made.index("## [Unreleased]") < made.index("## [0.2.0] - 2026-11-29")
    assert notes_of(made, "Unreleased") == ""
    assert notes_of(made, "0.2.0") == "### Added\n\n- A doctor."
    assert notes_of(made, "0.1.0") == "- The first."
    with pytest.raises(CannotCut, match="nothing under"):
        cut_changelog(made, "0.3.0", "2026-11-30")
    with pytest.raises(CannotCut, match=r"a section of 0\.2\.0 already"):
        cut_changelog(made, "0.2.0", "2026-11-30")


def test_the_project_names_its_repository_only_in_a_release_that_was_told_it() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert "[project.urls]" not in cut_project(project, "9.8.7")
    made = cut_project(project, "9.8.7", "https://code.example/sax")
    assert version_in(made) == "9.8.7"
    assert 'Changelog = "https://code.example/sax/blob/v9.8.7/CHANGELOG.md"' in made
    assert made.count("\n[project.") == project.count("\n[project.") + 1


def test_images_get_the_tag_of_the_release_and_others_stay() -> None:
    text = "image: sax-control:0.1.0\nimage: sax-control:0.1.01\nredis:0.1.0\nARG VERSION=0.1.0\n"
    assert cut_images(text, "0.1.0", "2.0.0") == (
        "image: sax-control:2.0.0\nimage: sax-control:0.1.01\nredis:0.1.0\nARG VERSION=2.0.0\n"
    )


def test_a_chart_gets_the_version_of_the_release_and_keeps_that_of_its_form() -> None:
    text = "apiVersion: v2\nversion: 0.1.0\nappVersion: 0.1.0\nminVersion: 0.1.0\n"
    assert cut_images(text, "0.1.0", "2.0.0") == (
        "apiVersion: v2\nversion: 2.0.0\nappVersion: 2.0.0\nminVersion: 0.1.0\n"
    )


def test_a_statement_names_the_files_the_commit_and_what_built_them() -> None:
    given = {
        "sums": {"a.whl": "ab" * 32},
        "tag": "v2.0.0",
        "repository": "https://code.example/sax",
        "builder": "make release-dry-run",
        "times": ("2026-11-29T04:00:00+00:00", "2026-11-29T04:10:00+00:00"),
        "packages": {"build": "1.2.0"},
    }
    made = statement(commit="0123456789ab", **given)
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["subject"] == [{"name": "a.whl", "digest": {"sha256": "ab" * 32}}]
    sources, package = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert sources["digest"] == {"gitCommit": "0123456789ab"}
    assert sources["uri"] == "git+https://code.example/sax"
    assert package == {"uri": "pkg:pypi/build@1.2.0"}
    dirty = statement(commit="0123456789ab-dirty", **given)
    assert dirty["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"] == {}


def test_a_cut_tree_bears_no_other_version_of_its_images(tmp_path: Path) -> None:
    old = version_in((ROOT / "pyproject.toml").read_text())
    for name in ("pyproject.toml", "CHANGELOG.md", "Dockerfile"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for file in (*(ROOT / "k8s").rglob("*.yaml"), *(ROOT / "examples").rglob("*.sh")):
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    cut(tmp_path, "9.8.7", "2026-11-29")
    texts = {
        file: file.read_text()
        for pattern in ("**/*.yaml", "**/*.sh", "Dockerfile")
        for file in tmp_path.glob(pattern)
    }
    tag = re.compile(r"sax-[\w-]+:\d+\.\d+\.\d+")
    tagged = [found for text in texts.values() for found in tag.findall(text)]
    assert len(tagged) > 8
    assert not [each for each in tagged if not each.endswith(":9.8.7")], old


def test_a_copy_has_new_files_and_none_that_git_ignores(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    subprocess.run(("git", "init", "-q", source), check=True)
    for name, text in {".gitignore": "*.so\n", "a.py": "", "b.so": "", "new/c.md": "c"}.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    subprocess.run(("git", "-C", source, "add", "a.py"), check=True)
    made = copy_tree(source, tmp_path / "copy")
    files = {each.relative_to(made).as_posix() for each in made.rglob("*") if each.is_file()}
    assert files == {".gitignore", "a.py", "new/c.md"}


def _library(machine: int, *words: bytes) -> bytes:
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + b"\0".join(words)


def _wheel(folder: Path, name: str, *names: str) -> Path:
    with zipfile.ZipFile(folder / name, "w") as packed:
        for each in names:
            packed.writestr(each, _library(62, b"GLIBC_2.17") if each.endswith(".so") else "")
    return folder / name


def test_a_wheel_has_the_kernels_of_its_machine_and_everything_else(tmp_path: Path) -> None:
    kernels = "model_server/kernels/cpu/_native.so"
    linux, pure = "s-1-py3-none-manylinux_2_27_x86_64.whl", "s-1-py3-none-any.whl"
    assert wrong_with(_wheel(tmp_path, linux, *WHOLE, kernels)) == []
    assert wrong_with(_wheel(tmp_path, pure, *WHOLE)) == []
    assert "of the native kernels" in wrong_with(_wheel(tmp_path, linux, *WHOLE))[0]
    assert "of the native kernels" in wrong_with(_wheel(tmp_path, pure, *WHOLE, kernels))[0]
    (lacks,) = wrong_with(_wheel(tmp_path, pure, *WHOLE[1:]))
    assert lacks.endswith("lacks sax/commit.txt")
    (more,) = wrong_with(_wheel(tmp_path, pure, *WHOLE, "tests/a.py"))
    assert more.endswith("has tests/")


@each_case(
    "library, wrong",
    [
        (_library(183, b"GLIBC_2.17", b"GLIBC_2.27", b"libm.so.6"), None),
        (_library(62, b"GLIBC_2.17"), "not for aarch64"),
        (b"MZ", "not for aarch64"),
        (_library(183, b"GLIBC_2.2", b"GLIBC_2.34"), r"needs glibc 2\.34"),
        (_library(183, b"libstdc++.so.6"), r"needs libstdc\+\+\.so"),
    ],
)
def test_a_library_keeps_what_its_wheels_name_promises(library: bytes, wrong: str | None) -> None:
    told = [*wrong_with_library(library, "aarch64", 27)]
    assert len(told) == (wrong is not None)
    assert wrong is None or re.search(wrong, told[0])


def test_the_sums_are_of_every_file_and_can_be_checked(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"b")
    (tmp_path / "a.whl").write_bytes(b"a")
    write_sums(tmp_path)
    write_sums(tmp_path)  # not of itself
    lines = (tmp_path / SUMS).read_text().splitlines()
    assert lines == [f"{hashlib.sha256(n.encode()).hexdigest()}  {n}.whl" for n in ("a", "b")]
