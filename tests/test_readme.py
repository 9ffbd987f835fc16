"""Every block of the README runs, in order, in one shell, against a cell of real processes.

The shell runs in a folder laid out like a clone after `make demo` (`.venv/bin`, `.cache/models`),
and the README's gateway and admin ports are replaced by the cell's. Blocks that only call make are
checked against the Makefile with `make --dry-run`: what `make demo` does is run by
tests/end_to_end/test_up.py, and `make test` is this suite.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.demo_model import FILE, ROOT, demo_model
from tests.end_to_end.cell import Cell, local_plan

pytestmark = pytest.mark.timeout(900)

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
README = (ROOT / "README.md").read_text()


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def only_make(self) -> bool:
        return all(line.startswith("make ") for line in self.text.strip().splitlines())


BLOCKS = [Block(match[1], match[2]) for match in FENCE.finditer(README)]


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
    assert {block.language for block in BLOCKS} == {"sh", "python"}


def test_the_make_commands_exist() -> None:
    lines = [line for block in BLOCKS if block.only_make for line in block.text.split("\n") if line]
    assert lines == ["make demo", "make test"]
    for line in lines:
        subprocess.run([*line.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


def test_every_file_that_the_readme_names_exists() -> None:
    named = re.findall(r"`((?:sax|admin_server|model_server|http_gateway|docs)/[\w./]+)`", README)
    linked = re.findall(r"\]\(([\w./]+)\)", README)
    assert len(named) > 10
    assert [name for name in named + linked if not (ROOT / name).exists()] == []


def test_every_block_runs(demo_cell: Cell, clone: Path) -> None:
    script = clone / "readme.sh"
    script.write_text("set -eu\n" + "".join(_runnable(demo_cell, clone)))
    environment = {
        **os.environ,
        "SAX_ADMIN": demo_cell.plan.admin_address,
        "PYTHONPATH": str(ROOT),
        "NO_PROXY": "127.0.0.1",
    }
    result = subprocess.run(
        ["sh", str(script)], cwd=clone, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{demo_cell.logs()}"
    assert result.stdout.count("Paris") >= 3, result.stdout
    # curl exits 0 whatever the gateway answers: an error would show as one of these.
    assert '"detail"' not in result.stdout
    assert '"error"' not in result.stdout


def _runnable(cell: Cell, clone: Path) -> Iterator[str]:
    for number, block in enumerate(block for block in BLOCKS if not block.only_make):
        text = block.text.replace("8888", str(cell.plan.gateway_port))
        text = text.replace("127.0.0.1:10000", cell.plan.admin_address)
        yield f"echo '--- block {number}' >&2\n"
        if block.language == "sh":
            yield text
            continue
        (clone / f"block{number}.py").write_text(text)
        yield f".venv/bin/python block{number}.py\necho\n"
