"""The Dockerfile, read: its targets, their entry points, ports, users and locks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sax import config
from tests.images.dockerfile import read_dockerfile
from tests.images.locks import EXTRAS, PROJECT, ROOT

FILE = ROOT / "Dockerfile"
IMAGES = read_dockerfile(FILE)
TARGETS = tuple(EXTRAS)
MODEL_TARGETS = tuple(name for name in TARGETS if name.startswith("model-"))


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "--no-color", FILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert not re.search(r"hadolint\s+ignore", FILE.read_text())


def test_every_stage_stands_on_the_one_base() -> None:
    assert IMAGES.arguments == {"BASE": "python:3.11-slim-bookworm"}
    for name in IMAGES.stages:
        assert IMAGES.line(name)[0].base == "${BASE}"


def test_old_builders_can_read_it() -> None:
    """No heredocs, no mounts of BuildKit's: buildah of Debian bookworm knows neither."""
    assert not re.search(r"<<|--mount|^# *syntax=", FILE.read_text(), re.MULTILINE)


def test_an_image_holds_what_its_own_lock_says() -> None:
    for target in TARGETS:
        (copied,) = [rest for rest in IMAGES.stages[target].all("COPY") if "--from" in rest]
        assert copied == f"--from=build-{target} /opt/sax /opt/sax", target
        installed = " ".join(IMAGES.stages[f"build-{target}"].all("RUN"))
        assert f"--require-hashes -r requirements/{target}.txt" in installed


def test_whatever_is_installed_is_pinned_or_is_ours() -> None:
    runs = [run for stage in IMAGES.stages.values() for run in stage.all("RUN")]
    commands = [command for run in runs for command in run.split("&&")]
    installs = [command for command in commands if " install " in command]
    assert len(installs) == 1 + 2 * len(TARGETS)
    assert all("--no-deps" in each for each in installs)
    assert all("--require-hashes" in each or "--no-index /wheels/" in each for each in installs)


def test_an_image_runs_nothing_as_root_and_runs_no_command_of_its_own() -> None:
    for target in TARGETS:
        assert IMAGES.last(target, "USER") == "10001:10001", target
        assert IMAGES.last(target, "STOPSIGNAL") == "SIGTERM", target
        assert not [run for stage in IMAGES.line(target) for run in stage.all("RUN")], target


def test_the_entry_points_are_those_the_manifests_count_on() -> None:
    assert IMAGES.entry_point("control") == ["python", "-m", "sax.container"]
    for target in MODEL_TARGETS:
        assert IMAGES.entry_point(target) == [*IMAGES.entry_point("control"), "model_server"]


def test_the_servers_of_the_control_image_start_without_arguments_too() -> None:
    """Manifests written for Saxml's images name none."""
    for target, role in {"admin-server": "admin_server", "http": "http_gateway"}.items():
        assert IMAGES.entry_point(target) == [*IMAGES.entry_point("control"), role]
        assert IMAGES.stages[target].base == "control"


def test_the_ports_are_the_servers_own() -> None:
    control = {config.ADMIN_PORT, config.ADMIN_STATUS_PORT, config.GATEWAY_PORT}
    assert IMAGES.ports("control") == control
    for target in MODEL_TARGETS:
        assert IMAGES.ports(target) == {config.MODEL_PORT, config.MODEL_METRICS_PORT}


def test_an_image_says_what_it_is() -> None:
    for target in TARGETS:
        labels = " ".join(label for stage in IMAGES.line(target) for label in stage.all("LABEL"))
        found = dict(re.findall(r"org\.opencontainers\.image\.(\w+)=(\S+)", labels))
        assert found["title"] == f"sax-{target}", target
        assert found["licenses"] == PROJECT["project"]["license"], target
        assert {"version", "revision", "source"} <= set(found), target
        assert f"VERSION={PROJECT['project']['version']}" in IMAGES.stages["runtime"].all("ARG")


def test_a_wheel_without_native_kernels_ends_the_build() -> None:
    """A failing compiler only warns when sax is installed elsewhere."""
    (run,) = IMAGES.stages["wheel"].all("RUN")
    wheel, check, otherwise = re.split(r"&&|\|\|", run)
    assert " wheel " in wheel
    assert "kernels/cpu/_native" in check
    assert "exit 1" in otherwise


def test_a_library_of_the_builders_own_machine_does_not_reach_the_build() -> None:
    assert "**/*.so" in (ROOT / ".dockerignore").read_text().splitlines()


def test_every_package_of_the_wheel_reaches_the_build() -> None:
    let_in = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    packages = {
        pattern.rstrip("*")
        for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    assert let_in == packages | {"pyproject.toml", "README.md", "LICENSE", "requirements"}
