"""Every example runs against one cell, as its first lines say; manifests are rendered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.demo_model import demo_model
from tests.docs.blocks import PAGES
from tests.each_case import each_case
from tests.end_to_end.cell import Cell, local_plan
from tests.house import ROOT
from tests.k8s.check import check
from tests.k8s.manifests import objects_of, render
from tests.real_models import minilm

EXAMPLES = ROOT / "examples"
_BUILDING = {"name", "city", "year", "metres"}


@dataclass(frozen=True)
class Ran:
    """A cell, and a folder in which examples run."""

    cell: Cell
    folder: Path

    def __call__(self, example: str, *words: str) -> list[str]:
        """Run an example; return the lines that it printed."""
        environ = {
            **os.environ,
            "SAX_ADMIN": self.cell.plan.admin_address,
            "SAX_URL": self.cell.url,
            "PYTHONPATH": str(ROOT),
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / example), *words],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.cell.logs()}"
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("examples")
    plan = local_plan(folder / "cell", "--slots=8", "--max_context=2048", "--import=custom_model")
    with Cell(plan, environ={"PYTHONPATH": str(EXAMPLES)}) as cell:
        cell.publish(str(demo_model()), model_path="auto")
        yield Ran(cell, folder)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_examples_of_one_model_do_what_they_say(run: Ran) -> None:
    assert run("chat.py") == ["The capital of France is Paris."] * 2
    called, told = run("tools.py")
    assert called == "get_temperature({'city': 'Oslo'}) = -4 degrees"
    assert "-4" in told
    assert json.loads("\n".join(run("structured_output.py"))).keys() == _BUILDING
    answers = dict(line.split(": ", 1) for line in run("batch.py"))
    assert answers.keys() == {"France", "Italy", "Japan"}
    assert "Paris" in answers["France"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_examples_of_further_models_do_what_they_say(run: Ran) -> None:
    run.cell.publish(str(minilm()), model="/sax/test/minilm", model_path="auto")
    found, told = run("retrieval.py")
    assert found.startswith("found: The cafeteria serves lunch")
    assert told
    run.cell.publish("None", model="/sax/test/distances", model_path="custom_model.Nearest")
    cities = [line.rpartition(" ")[2] for line in run("custom_model.py")]
    assert cities == ["Paris", "Rome", "Oslo"]
    base = run.folder / "base"
    converted = run.cell.sax("convert", str(demo_model()), str(base))
    assert converted.returncode == 0, converted.stderr
    texts = [line.split(": ", 1)[1] for line in run("adapter.py", str(base))]
    assert "Paris" in texts[0]
    assert texts[1] != texts[0]


def test_the_page_of_examples_lists_each_of_them() -> None:
    listed = {
        name
        for name in (path.name for path in EXAMPLES.iterdir())
        if f"[{name}]({name}" in PAGES["examples/README.md"]
    }
    there = {path.name for path in EXAMPLES.iterdir() if path.name[0] not in "_."}
    assert there - {"README.md"} == listed


@each_case("path", [path.name for path in sorted(EXAMPLES.glob("[!_]*.py"))])
def test_an_example_begins_with_what_it_does_and_how_it_is_run(path: str) -> None:
    text = (EXAMPLES / path).read_text()
    first, _, rest = text.removeprefix('"""').partition("\n\n")
    assert first.endswith(".")
    assert f"examples/{path}" in rest.partition('"""')[0]


@pytest.mark.extended
def test_the_autoscaled_cell_renders_and_holds_all_checks() -> None:
    objects = objects_of(render(EXAMPLES / "autoscaled_cell"))
    found = check("examples/autoscaled_cell", objects)
    assert [finding for finding in found if not finding.note] == []
    (servers,) = (
        each
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "sax-model-server"
    )
    assert "replicas" not in servers["spec"]
