"""The workflows call what is here: targets of make, commands of the release, images, the name."""

from __future__ import annotations

import re

import yaml

from sax.distribution import NAME
from tests.house import ROOT
from tests.images.locks import EXTRAS

WORKFLOWS = {file.name: file.read_text() for file in (ROOT / ".github" / "workflows").glob("*.yml")}
RELEASE = yaml.safe_load(WORKFLOWS["release.yml"])


def test_every_target_of_make_that_a_workflow_calls_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {*re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.MULTILINE)}
    called = [
        (name, target)
        for name, text in WORKFLOWS.items()
        for target in re.findall(r"(?:run: |env \S+ )make ([a-z][\w-]*)", text)
    ]
    assert ("release.yml", "release-dry-run") in called
    assert [each for each in called if each[1] not in targets] == []


def test_a_release_pushes_every_image_of_the_dockerfile() -> None:
    rows = RELEASE["jobs"]["images"]["strategy"]["matrix"]["include"]
    pushed = {row["target"]: row["platforms"] for row in rows}
    assert set(pushed) == {*EXTRAS, "admin-server", "http"}
    assert {name for name, places in pushed.items() if "arm64" not in places} == {
        "model-tpu",
        "model-cuda",
    }


def test_nothing_is_published_before_it_was_installed_nor_without_a_place_to_publish_to() -> None:
    jobs = RELEASE["jobs"]
    for name, variable in {"publish": "SAX_INDEX", "images": "SAX_REGISTRY"}.items():
        assert jobs[name]["needs"] == ["install"]
        assert f"vars.{variable} != ''" in jobs[name]["if"]
        assert "github.event_name == 'push'" in jobs[name]["if"]
    assert RELEASE["permissions"] == {"contents": "read"}


def test_what_a_workflow_installs_by_name_is_ours() -> None:
    installs = r"(?:pip install|pip download) (?:\S+ )*?[\"']?(sax[\w-]*)"
    named = re.findall(installs, WORKFLOWS["release.yml"])
    assert len(named) >= 2
    assert set(named) == {NAME}
