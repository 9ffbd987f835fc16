"""A client in Go, made from the protos by Go's own plugins and its own gRPC, against a real cell.

It finds the admin server as Saxml's Go client does, and gets what Python gets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from sax.client import Client
from sax.proto import admin_pb2, admin_pb2_grpc, common_pb2, lm_pb2, lm_pb2_grpc
from tests.end_to_end.cell import ADMIN, Cell
from tests.end_to_end.go_client.conftest import GoClient

pytestmark = pytest.mark.timeout(900)

MODEL = "/sax/test/go"
QUERY = "Spell 'naïve café' with all its accents."
GREEDY = {"temperature": 0, "per_example_max_decode_steps": 24}
EXTRA = [f"{key}={value}" for key, value in GREEDY.items()]
SUFFIXES = [" Paris", " Rome", " a café"]


@pytest.fixture(scope="module")
def published(go: GoClient, rooted: Cell, gguf: Path) -> Iterator[Cell]:
    """The cell with the model published, and waited for, by the Go client."""
    assert go.ask("publish", MODEL, "llama", str(gguf), "1") is None
    assert go.ask("wait", MODEL, "1") is None
    yield rooted
    go.ask("unpublish", MODEL)


@pytest.fixture
def admin(rooted: Cell) -> Iterator[admin_pb2_grpc.AdminStub]:
    with grpc.insecure_channel(rooted.plan.admin_address) as channel:
        yield admin_pb2_grpc.AdminStub(channel)


@pytest.fixture
def lm(rooted: Cell) -> Iterator[lm_pb2_grpc.LMServiceStub]:
    with grpc.insecure_channel(f"127.0.0.1:{rooted.plan.model_port}") as channel:
        yield lm_pb2_grpc.LMServiceStub(channel)


def test_go_lists_what_python_lists(
    go: GoClient, published: Cell, admin: admin_pb2_grpc.AdminStub
) -> None:
    listed = go.ask("list", MODEL)
    python = json_format.MessageToDict(admin.List(admin_pb2.ListRequest(model_id=MODEL)))
    assert listed == python
    (model,) = listed["publishedModels"]
    assert model["readyReplicas"] == len(model["modeletAddresses"]) == 1


def test_go_reads_the_servers_of_the_cell_by_kind(
    go: GoClient, published: Cell, admin: admin_pb2_grpc.AdminStub
) -> None:
    python = json_format.MessageToDict(admin.Stats(admin_pb2.StatsRequest(model_id=MODEL)))
    assert go.ask("stats", MODEL) == python
    (kind,) = python["modelServerTypeStats"]
    assert (kind["chipType"], kind["numReplicas"]) == ("CHIP_TYPE_CPU", 1)


def test_go_generates_what_python_generates(
    go: GoClient, published: Cell, lm: lm_pb2_grpc.LMServiceStub
) -> None:
    request = lm_pb2.GenerateRequest(
        model_key=MODEL, text=QUERY, extra_inputs=common_pb2.ExtraInputs(items=GREEDY)
    )
    reply = lm.Generate(request)
    told = go.ask("generate", MODEL, QUERY, *EXTRA)
    assert told["texts"] == [each.text for each in reply.texts]
    assert told["texts"][0]
    assert told["scores"] == pytest.approx([each.score for each in reply.texts], rel=1e-4)
    assert told["cost"] >= 1
    body = {"model": MODEL, "query": QUERY, "extra_inputs": GREEDY}
    [[text, _]] = published.http.post("/generate", json=body).json()
    assert told["texts"] == [text]


def test_a_stream_in_go_grows_into_the_whole_text(go: GoClient, published: Cell) -> None:
    whole, told = (go.ask(how, MODEL, QUERY, *EXTRA) for how in ("generate", "stream"))
    assert told["texts"] == whole["texts"]
    assert told["scores"] == pytest.approx(whole["scores"], rel=1e-4)
    assert told["pieces"] > 1
    assert told["cost"] >= 1


def test_go_scores_as_python_does(go: GoClient, published: Cell) -> None:
    prefix = "The capital of France is"
    told = go.ask("score", MODEL, prefix, *SUFFIXES)
    with Client(published.plan.admin_address) as client:
        assert told["scores"] == pytest.approx(client.score(MODEL, prefix, SUFFIXES), rel=1e-4)
    assert told["scores"][0] == max(told["scores"])
    assert told["cost"] >= 1


def test_an_error_has_its_code_and_words_in_go(go: GoClient, published: Cell) -> None:
    error = go.ask("generate", MODEL, QUERY, "tempo=1")
    assert error["code"] == "InvalidArgument"
    assert "tempo" in error["message"]
    assert go.ask("publish", MODEL, "llama", "None", "1")["code"] == "AlreadyExists"
    assert go.ask("list", "/sax/test/nosuch")["code"] == "NotFound"
    assert go.ask("watch", "/sax/test/nosuch")["code"] == "NotFound"


def test_a_watch_in_go_follows_a_model_and_outlives_its_admin_server(
    go: GoClient, rooted: Cell, gguf: Path
) -> None:
    model, server = "/sax/test/watched", f"127.0.0.1:{rooted.plan.model_port}"
    assert go.ask("publish", model, "llama", str(gguf), "1") is None
    with go.start("watch", model) as watching:
        assert watching.stdout is not None
        told = map(json.loads, watching.stdout)
        before = _next_with(told, [server])
        rooted.kill(ADMIN)
        rooted.start(ADMIN)
        rooted.eventually(rooted.joined, "the model server has joined again")
        after = _next_with(told, [server], other_than=before["server"])
        assert after["fullset"]
        assert go.ask("unpublish", model) is None
        assert list(told)[-1]["code"] == "NotFound"
        assert watching.wait(60) == 1


def _next_with(
    told: Iterator[dict[str, Any]], addresses: list[str], other_than: str = ""
) -> dict[str, Any]:
    """Return the first reply with these addresses, from another admin server than that."""
    for each in told:
        assert "code" not in each, each
        if each["addresses"] == addresses and each["server"] != other_than:
            return each
    raise AssertionError("the watch ended")
