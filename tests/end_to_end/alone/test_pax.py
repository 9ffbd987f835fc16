"""A Pax checkpoint in a real cell: served, saved by its server, served again and exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from sax.proto import modelet_pb2, modelet_pb2_grpc
from tests.end_to_end.cell import Cell, local_plan
from tests.model_server.checkpoints.pax_writer import write_arrays
from tests.model_server.checkpoints.tiny_folder import VOCAB, tokenizer_json
from tests.tools.golden.pax.cases import PaxCase
from tests.tools.golden.pax.model import variables_of

# Saving and exporting are tested without a cell (tests/model_server/services), and so is the
# dialect (tests/model_server/checkpoints/orbax/pax).
pytestmark = pytest.mark.nightly

MODEL, SAVED = "/sax/test/pax", "/sax/test/saved"
CASE = PaxCase(
    name="served",
    path="saxml.server.pax.lm.params.lm_cloud.LLaMA7BFP16",
    kind="llama",
    vocab=VOCAB,
    epsilon=1e-5,
    stacked=True,
)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pax")


@pytest.fixture(scope="module")
def pax_cell(room: Path) -> Iterator[Cell]:
    plan = local_plan(room / "cell", "--slots=2", f"--checkpoint_roots={room}")
    with Cell(plan) as running:
        yield running


def modelet(cell: Cell) -> modelet_pb2_grpc.ModeletStub:
    return modelet_pb2_grpc.ModeletStub(grpc.insecure_channel(f"127.0.0.1:{cell.plan.model_port}"))


def test_it_is_served_saved_and_served_again(pax_cell: Cell, room: Path) -> None:
    step = write_arrays(room / "run", variables_of(CASE))
    (room / "run" / "tokenizer.json").write_text(tokenizer_json())
    overrides = {key: json.loads(text) for key, text in CASE.overrides.items()}
    float32 = {"DTYPE": "float32"}
    pax_cell.publish(
        str(step), model=MODEL, model_path=CASE.path, overrides={**overrides, **float32}
    )
    wanted = pax_cell.text("hello", model=MODEL, max_tokens=12)
    saved, exported = room / "saved", room / "exported"
    stub = modelet(pax_cell)
    stub.Save(modelet_pb2.SaveRequest(model_key=MODEL, checkpoint_path=str(saved)))
    stub.Export(
        modelet_pb2.ExportRequest(
            model_key=MODEL, method_names=["lm.score"], export_path=str(exported)
        )
    )
    assert (exported / "serving_default.jax_export").stat().st_size > 0
    assert json.loads((exported / "export.json").read_text())["model"] == MODEL
    with pytest.raises(grpc.RpcError, match="not below --checkpoint_roots"):
        stub.Save(modelet_pb2.SaveRequest(model_key=MODEL, checkpoint_path="/tmp/elsewhere"))
    pax_cell.publish(str(saved), model=SAVED, model_path="auto", overrides=float32)
    assert pax_cell.text("hello", model=SAVED, max_tokens=12) == wanted
