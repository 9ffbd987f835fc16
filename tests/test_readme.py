"""Every block of the README and of the pages it continues on runs against a cell of real processes.

The blocks of README.md, of tutorial/first_cell.md and tutorial/command_line.md below docs/, and of
docs/how_to/benchmarking.md run in order in one shell, in a folder laid out like a clone after
`make demo` (`.venv/bin`, `.cache/models`); their gateway and admin ports are replaced by the
cell's. Blocks that only call make are checked against the Makefile with `make --dry-run`: what
`make demo` does is run by tests/end_to_end/alone/test_up.py, and what `make test` runs is this
suite.

Those of docs/tutorial/coming_from.md run in another shell, except what was typed at other servers
("text"), and those of docs/tutorial/one_evening.md in a third, with the examples of the tree.

docs/tutorial/islands.md, and the section of docs/how_to/operations.md on more than one host, have
cells of their own; tests/docs/test_pages.py reads the commands for a cluster as the hosts of that
cluster would. CI runs the blocks of the README and of first_cell.md, and the night all.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sax.cli.local.cell_plan import CellPlan
from tests.demo_model import FILE, ROOT, demo_model
from tests.docs.blocks import (
    COMING,
    CONTINUED,
    EVENING,
    ISLANDS,
    PLANNING,
    README,
    SEVERAL_HOSTS,
    Block,
)
from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.command import options, sax
from tests.model_server.tpu_compiler import needs_compiler
from tests.real_models import minilm

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def demo_cell(tmp_path: Path) -> Iterator[Cell]:
    """The cell a reader has after `make demo`."""
    with Cell(local_plan(tmp_path / "cell", "--slots=8", "--max_context=2048")) as cell:
        cell.publish(str(demo_model()))
        yield cell


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what `make demo` leaves in a clone."""
    folder = tmp_path / "clone"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".cache" / "models").mkdir(parents=True)
    (folder / ".cache" / "models" / FILE).symlink_to(demo_model())
    for name in ("examples", "k8s"):
        shutil.copytree(ROOT / name, folder / name)
    for name, words in (("sax", "-m sax.cli"), ("python", "")):
        script = folder / ".venv" / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        script.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("told", "answers"),
    [
        pytest.param(README, 2, id="the README"),
        pytest.param(README + CONTINUED, 3, id="all of them", marks=pytest.mark.nightly),
        pytest.param(
            [block for block in COMING if block.language != "text"],
            8,
            id="for users of peers",
            marks=pytest.mark.nightly,
        ),
        pytest.param(EVENING, 3, id="of one evening", marks=pytest.mark.nightly),
    ],
)
def test_every_block_runs(demo_cell: Cell, clone: Path, told: list[Block], answers: int) -> None:
    if told is EVENING:
        (clone / ".cache" / "models" / "all-MiniLM-L6-v2").symlink_to(minilm())
    script = clone / "blocks.sh"
    script.write_text("set -eu\n" + "".join(_runnable(demo_cell, clone, told)))
    result = _run(script, _environment(demo_cell.plan))
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{demo_cell.logs()}"
    assert result.stdout.count("Paris") >= answers, result.stdout
    # curl exits 0 whatever the gateway answers: an error would show as one of these.
    assert '"detail"' not in result.stdout
    assert '"error"' not in result.stdout


def _runnable(cell: Cell, clone: Path, told: list[Block]) -> Iterator[str]:
    for number, block in enumerate(block for block in told if not block.only_make):
        text = block.text.replace("8888", str(cell.plan.gateway_port))
        text = text.replace("127.0.0.1:10000", cell.plan.admin_address)
        yield f"echo '--- block {number}' >&2\n"
        if block.language == "sh":
            yield text
            continue
        (clone / f"block{number}.py").write_text(text)
        yield f".venv/bin/python block{number}.py\necho\n"


@pytest.mark.nightly
def test_a_host_of_a_gang_is_killed_and_the_gang_comes_back(tmp_path: Path, clone: Path) -> None:
    plan = local_plan(tmp_path / "cell", hosts=4, devices_per_host=2)
    start, rest = SEVERAL_HOSTS[0].text.split(), SEVERAL_HOSTS[1].text
    flags = start.index("--")
    assert start[:4] == [".venv/bin/sax", "up", "--dir", ".sax/hosts"]
    script = clone / "hosts.sh"
    # No other gang of this machine: those of other tests have a host 2 as well.
    ours = f"'group_port={plan.group_port} .*host_ordinal=2'"
    assert rest.count("host_ordinal=2") == 1
    script.write_text("set -eu\n" + rest.replace("host_ordinal=2", ours))
    with sax("up", *start[4:flags], *options(plan), *start[flags:]) as cell:
        cell.until("is up")
        result = _run(script, _environment(plan))
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{cell.output}"
        assert result.stdout.count("Paris") == 2
        cell.until("model server: host 2 died (killed by SIGKILL); restarting its 4 hosts in")
        assert cell.end(signal.SIGINT) == 0, cell.output


@pytest.mark.nightly
def test_an_island_is_killed_and_comes_back(tmp_path: Path, clone: Path) -> None:
    _, start, rest = (block.text for block in ISLANDS)
    words = start.split()
    flags = words.index("--")
    assert words[:4] == [".venv/bin/sax", "up", "--dir", ".sax/islands"]
    plan = local_plan(tmp_path / "cell", islands=2, devices_per_island=2)
    script = clone / "islands.sh"
    # No other worker of this machine: those of other tests have an island 0 as well.
    ours = f"server_port={plan.pathways_port + 5} .*island=0"
    script.write_text("set -eu\n" + rest.replace("node_type=worker.*island=0", ours))
    with sax("up", *options(plan), *words[flags:]) as cell:
        cell.until("is up")
        result = _run(script, _environment(plan))
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{cell.output}"
        assert "the same text" in result.stdout
        assert "1 of 2 islands lost" in result.stdout
        cell.until("worker of island 0 died (killed by SIGKILL); restarting it in")
        assert cell.end(signal.SIGINT) == 0, cell.output


@needs_compiler
@pytest.mark.nightly
def test_the_tutorials_model_is_planned_as_written() -> None:
    command, *words = shlex.split(PLANNING[0].text.splitlines()[0])
    assert command == "sax"
    result = subprocess.run(
        [sys.executable, "-m", "sax.cli", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "it fits v5e:4x8" in result.stdout


def _environment(plan: CellPlan) -> dict[str, str]:
    return {
        **os.environ,
        "SAX_ADMIN": plan.admin_address,
        "SAX_URL": plan.gateway_url,
        "PYTHONPATH": str(ROOT),
        "NO_PROXY": "127.0.0.1",
    }


def _run(script: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(script)], cwd=script.parent, env=environment, capture_output=True, text=True
    )
