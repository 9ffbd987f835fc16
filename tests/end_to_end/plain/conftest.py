"""The plain cell, which most end-to-end tests share, and models that several files ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.conftest import FLAGS
from tests.end_to_end.custom_modules import modules
from tests.end_to_end.tool_template import TEMPLATE
from tests.model_server.checkpoints.hub.fake_hub import FakeHub, running_hub
from tests.model_server.tiny_bert import tiny_bert

CALLER = "/sax/test/caller"
EMBEDDER = "/sax/test/embedder"


@pytest.fixture(scope="session")
def hub() -> Iterator[FakeHub]:
    """The hub of the cell's processes. Tests leave it answering."""
    with running_hub() as running:
        yield running


@pytest.fixture(scope="session")
def cell(tmp_path_factory: pytest.TempPathFactory, hub: FakeHub) -> Iterator[Cell]:
    """A cell with nothing published but what tests publish.

    Its model server imports the modules of docs/how_to/custom_models.md, as if it were started
    beside them, and its admin server writes its address below `root`, where clients in Go look.
    """
    folder = tmp_path_factory.mktemp("cell")
    for name, text in modules().items():
        (folder / f"{name}.py").write_text(text)
    plan = local_plan(folder, *FLAGS, *(f"--import={name}" for name in modules()))
    environ = {
        "PYTHONPATH": str(folder),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_CACHE": str(folder / "hf" / "hub"),
    }
    flags = (f"--sax_root={folder / 'root'}",)
    with Cell(replace(plan, admin_flags=flags), environ=environ) as running:
        yield running
        # After all that was asked of it. A request that needs a program fails besides (strict).
        assert "sax_compiles_while_serving_total 0.0" in running.metrics_page()


@pytest.fixture(scope="session")
def served(cell: Cell, gguf: Path) -> Cell:
    """The shared cell with /sax/test/smollm2 ready. Tests leave it ready."""
    cell.publish(str(gguf))
    return cell


@pytest.fixture(scope="session")
def calling(served: Cell, gguf: Path) -> Cell:
    """The shared cell with the demo model under a template that has tools, as CALLER too."""
    served.publish(str(gguf), model=CALLER, overrides={"CHAT_TEMPLATE": TEMPLATE})
    return served


@pytest.fixture(scope="session")
def embedding(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Cell:
    """The shared cell with a tiny BERT as EMBEDDER."""
    folder = tiny_bert(tmp_path_factory.mktemp("bert"))
    small = {"MAX_CONTEXT": 32, "BATCH_SIZE": 4}
    cell.publish(str(folder), model=EMBEDDER, model_path="auto", overrides=small)
    return cell
