"""Every block of the README and of the pages it continues on runs against a cell of real processes.

The blocks of README.md, docs/command_line.md and docs/benchmarking.md run in order in one shell, in
a folder laid out like a clone after `make demo` (`.venv/bin`, `.cache/models`); their gateway and
admin ports are replaced by the cell's. Blocks that only call make are checked against the Makefile
with `make --dry-run`: what `make demo` does is run by tests/end_to_end/alone/test_up.py, and `make test`
is this suite.

Those of docs/coming_from.md run in another shell, but for what was typed at other servers ("text").

The sections on islands, and of docs/operations.md on more than one host, have cells of their own;
the commands for a cluster are read as the hosts of that cluster would read them. Every file and
heading that a page names exists.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from model_server.flags import make_config
from model_server.multihost.membership import membership
from sax.cli.local.cell_plan import CellPlan
from tests.demo_model import FILE, ROOT, demo_model
from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.command import options, sax
from tests.model_server.tpu_compiler import needs_compiler

pytestmark = pytest.mark.timeout(900)

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
PACKAGES = "sax|admin_server|model_server|http_gateway|k8s|tests|docs"


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    section: str

    @property
    def only_make(self) -> bool:
        return all(line.startswith("make ") for line in self.text.strip().splitlines())


def blocks(page: str) -> list[Block]:
    return [
        Block(match[1], match[2], section.partition("\n")[0])
        for section in re.split(r"^## ", PAGES[page], flags=re.MULTILINE)
        for match in FENCE.finditer(section)
    ]


README = blocks("README.md")
ISLANDS = [block for block in README if block.section == "Islands"]
TOLD = [
    *(block for block in README if block not in ISLANDS),
    *blocks("docs/command_line.md"),
    *blocks("docs/benchmarking.md"),
]
SEVERAL_HOSTS = [
    block for block in blocks("docs/operations.md") if block.section == "More than one host"
]
PLANNING = blocks("docs/planning.md")
COMING = blocks("docs/coming_from.md")
PEERS = ("From vLLM", "From Ollama", "From llama.cpp", "From Saxml")
BLOCKS = TOLD + ISLANDS + SEVERAL_HOSTS + PLANNING
TPU_SLICE = {"TPU_WORKER_HOSTNAMES": "tpu-0,tpu-1,tpu-2,tpu-3", "TPU_WORKER_ID": "1"}
LEADER_WORKER_SET = {
    "LWS_LEADER_ADDRESS": "gemma-0.gemma",
    "LWS_GROUP_SIZE": "4",
    "LWS_WORKER_INDEX": "1",
}
JOB = {"JOB_COMPLETION_INDEX": "1"}


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
    for name, words in (("sax", "-m sax.cli"), ("python", "")):
        script = folder / ".venv" / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        script.chmod(0o755)
    return folder


def test_every_block_says_its_language() -> None:
    assert BLOCKS
    assert {block.language for block in BLOCKS} == {"sh", "python", "mermaid"}


def test_the_make_commands_exist() -> None:
    lines = [line for block in BLOCKS if block.only_make for line in block.text.split("\n") if line]
    assert lines == ["make demo", "make test", "make plans"]
    for line in lines:
        subprocess.run([*line.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


def named(page: str) -> list[str]:
    return re.findall(rf"`((?:{PACKAGES})/[\w./*-]*)`", PAGES[page])


def test_the_pages_name_files() -> None:
    assert len(named("docs/architecture.md")) > 60
    assert sum(len(named(page)) for page in PAGES) > 90


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    assert [name for name in named(page) if not any(ROOT.glob(name.rstrip("/")))] == []
    folder = (ROOT / page).parent
    linked = re.findall(r"\]\(([\w./]+)(?:#[\w-]*)?\)", PAGES[page])
    assert [name for name in linked if not (folder / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_heading_that_a_page_links_to_exists(page: str) -> None:
    folder = (ROOT / page).parent
    for name, anchor in re.findall(r"\]\(([\w./]*\.md)?#([\w-]+)\)", PAGES[page]):
        text = (folder / name).read_text() if name else PAGES[page]
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        slugs = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
        assert anchor in slugs, f"{name}#{anchor}"


def test_every_page_is_linked_from_the_readme() -> None:
    assert [
        page for page in PAGES if page != "README.md" and f"({page})" not in PAGES["README.md"]
    ] == []


@pytest.mark.extended
def test_every_block_runs(demo_cell: Cell, clone: Path) -> None:
    script = clone / "readme.sh"
    script.write_text("set -eu\n" + "".join(_runnable(demo_cell, clone, TOLD)))
    result = _run(script, _environment(demo_cell.plan))
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{demo_cell.logs()}"
    _check_answers(result.stdout, 3)


def test_each_peer_is_told_what_was_typed_there_and_what_to_type_here() -> None:
    assert list(dict.fromkeys(block.section for block in COMING))[1:] == [*PEERS]
    for peer in PEERS:
        languages = [block.language for block in COMING if block.section == peer]
        assert languages[0] == "text"
        assert languages.count("sh") >= 2
        assert set(languages) <= {"text", "sh", "python"}


@pytest.mark.extended
def test_every_command_for_users_of_peers_runs(demo_cell: Cell, clone: Path) -> None:
    script = clone / "coming.sh"
    ours = [block for block in COMING if block.language != "text"]
    script.write_text("set -eu\n" + "".join(_runnable(demo_cell, clone, ours)))
    result = _run(script, _environment(demo_cell.plan))
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{demo_cell.logs()}"
    _check_answers(result.stdout, 8)


def _check_answers(output: str, least: int) -> None:
    assert output.count("Paris") >= least, output
    # curl exits 0 whatever the gateway answers: an error would show as one of these.
    assert '"detail"' not in output
    assert '"error"' not in output


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


@pytest.mark.parametrize(
    ("number", "environ", "hostname"),
    [
        (2, {}, "tpu-1"),
        (3, TPU_SLICE, "gke-node"),
        (3, LEADER_WORKER_SET, "gemma-0-1"),
        (4, JOB, "gemma-server-0-1"),
        (4, JOB, "gemma-1"),
    ],
)
def test_the_commands_for_a_cluster_make_one_gang_of_its_hosts(
    number: int, environ: dict[str, str], hostname: str
) -> None:
    words = shlex.split(SEVERAL_HOSTS[number].text)
    command = words.index("python")
    assert words[command : command + 3] == ["python", "-m", "model_server"]
    config = make_config(words[command + 3 :])
    environ = {**environ, **dict(word.split("=", 1) for word in words[:command])}
    found = membership(config.hosts, config.host_ordinal, environ, hostname)
    assert (found.count, found.ordinal) == (4, 1)


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


@pytest.mark.extended
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
        "PYTHONPATH": str(ROOT),
        "NO_PROXY": "127.0.0.1",
    }


def _run(script: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(script)], cwd=script.parent, env=environment, capture_output=True, text=True
    )
