"""docs/how_to/custom_models.md against a real cell that imports the page's own modules."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from sax.client import AsyncClient, Client
from sax.errors import InvalidRequest
from sax.proto import custom_pb2, custom_pb2_grpc
from tests.demo_model import ROOT
from tests.end_to_end.cell import MODEL_SERVER, Cell
from tests.end_to_end.custom_modules import blocks, modules

FLOWERS = "/sax/test/flowers"
SETOSA, VIRGINICA = b"[5.1, 3.5, 1.4, 0.2]", b"[6.5, 3.0, 5.5, 2.0]"


@pytest.fixture(scope="module")
def flowers(cell: Cell) -> Iterator[Cell]:
    """The cell, whose model server imports the page's modules, with the first one's model ready."""
    words = next(text for _, text in blocks() if text.startswith("sax publish"))
    published = cell.sax(*words.splitlines()[0].split()[1:])
    assert published.returncode == 0, f"{published.stderr}\n{cell.logs()}"
    yield cell
    cell.sax("unpublish", FLOWERS)


def shares(answer: bytes | str) -> dict[str, float]:
    return json.loads(answer)


def test_the_page_has_both_kinds_of_module() -> None:
    assert list(modules()) == ["flowers", "short_llama"]
    assert "sax up --import flowers\n" in [text for _, text in blocks()]


def test_what_is_imported_is_offered(flowers: Cell) -> None:
    with Client(flowers.plan.admin_address) as client:
        (server,) = client.servers()
    assert {"flowers.Classifier", "short_llama.Llama", "llama"} <= set(server.info.model_paths)


def test_the_command_line_sends_and_prints_bytes(flowers: Cell) -> None:
    result = flowers.sax("custom", FLOWERS, stdin=SETOSA.decode())
    assert result.returncode == 0, result.stderr
    told = shares(result.stdout)
    assert max(told, key=told.__getitem__) == "setosa"
    refused = flowers.sax("custom", FLOWERS, stdin="roses")
    assert refused.returncode == 1
    assert "Expecting value" in refused.stderr
    assert "classify" in flowers.sax("ls", FLOWERS).stdout


def test_the_pages_python_runs(flowers: Cell) -> None:
    (block,) = [text for _, text in blocks() if text.startswith("import sax\n")]
    result = subprocess.run(
        [sys.executable, "-c", block],
        env={"SAX_ADMIN": flowers.plan.admin_address, "PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == second
    assert "virginica" in first


def test_a_client_made_from_saxmls_proto_is_answered(flowers: Cell) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{flowers.plan.model_port}") as channel:
        stub = custom_pb2_grpc.CustomServiceStub(channel)
        request = custom_pb2.CustomRequest(
            model_key=FLOWERS, request=VIRGINICA, method_name="classify"
        )
        reply, call = stub.Custom.with_call(request)
    told = shares(reply.response)
    assert max(told, key=told.__getitem__) == "virginica"
    assert int(dict(call.trailing_metadata())["query_cost_v0"]) >= 1


def test_bad_requests_among_many_harm_nobody(flowers: Cell) -> None:
    async def ask_all() -> list[bytes | BaseException]:
        async with AsyncClient(flowers.plan.admin_address) as client:
            asked = [client.custom(FLOWERS, b"[1, 2]" if n % 5 == 0 else SETOSA) for n in range(60)]
            return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(ask_all())
    for n, answer in enumerate(answers):
        if n % 5 == 0:
            assert isinstance(answer, InvalidRequest), answer
        else:
            assert isinstance(answer, bytes), answer
            assert shares(answer)["setosa"] > 0.9
    batches = flowers.metric("sax_batches_total", FLOWERS)
    assert 0 < batches < 60 * 5  # halving a batch does not count as one


@pytest.mark.nightly  # the demo model once more
def test_a_registered_language_model_answers(cell: Cell, gguf: Path) -> None:
    model = "/sax/test/short"
    cell.publish(str(gguf), model=model, model_path="short_llama.Llama")
    try:
        assert "Paris" in cell.text("The capital of France is", model=model)
        words = cell.sax("custom", model, stdin="x")
        assert "is a language model and does not serve custom" in words.stderr
    finally:
        cell.sax("unpublish", model)


def test_a_module_that_cannot_be_imported_ends_the_server_before_it_joins(cell: Cell) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "model_server", "--port=0", "--import=no_such_module"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "--import no_such_module: ModuleNotFoundError" in result.stderr
    assert "listening" not in result.stderr
    assert cell.alive(MODEL_SERVER)
