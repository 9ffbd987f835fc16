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
from tests.end_to_end.cell import ADMIN, SMOLLM2, Cell
from tests.end_to_end.plain.go_client.conftest import GoClient
from tests.model_server.checkpoints.tiny_folder import write_tiny

QUERY = "Spell 'naïve café' with all its accents."
GREEDY = {"temperature": 0, "per_example_max_decode_steps": 24}
EXTRA = [f"{key}={value}" for key, value in GREEDY.items()]
SUFFIXES = [" Paris", " Rome", " a café"]


@pytest.fixture
def admin(cell: Cell) -> Iterator[admin_pb2_grpc.AdminStub]:
    with grpc.insecure_channel(cell.plan.admin_address) as channel:
        yield admin_pb2_grpc.AdminStub(channel)


@pytest.fixture
def lm(cell: Cell) -> Iterator[lm_pb2_grpc.LMServiceStub]:
    with grpc.insecure_channel(f"127.0.0.1:{cell.plan.model_port}") as channel:
        yield lm_pb2_grpc.LMServiceStub(channel)


@pytest.mark.nightly
def test_go_lists_what_python_lists(
    go: GoClient, served: Cell, admin: admin_pb2_grpc.AdminStub
) -> None:
    listed = go.ask("list", SMOLLM2)
    python = json_format.MessageToDict(admin.List(admin_pb2.ListRequest(model_id=SMOLLM2)))
    assert listed == python
    (model,) = listed["publishedModels"]
    assert model["readyReplicas"] == len(model["modeletAddresses"]) == 1


@pytest.mark.nightly
def test_go_reads_the_servers_of_the_cell_by_kind(
    go: GoClient, served: Cell, admin: admin_pb2_grpc.AdminStub
) -> None:
    python = json_format.MessageToDict(admin.Stats(admin_pb2.StatsRequest(model_id=SMOLLM2)))
    assert go.ask("stats", SMOLLM2) == python
    (kind,) = python["modelServerTypeStats"]
    assert (kind["chipType"], kind["numReplicas"]) == ("CHIP_TYPE_CPU", 1)


@pytest.mark.nightly
def test_go_generates_what_python_generates(
    go: GoClient, served: Cell, lm: lm_pb2_grpc.LMServiceStub
) -> None:
    request = lm_pb2.GenerateRequest(
        model_key=SMOLLM2, text=QUERY, extra_inputs=common_pb2.ExtraInputs(items=GREEDY)
    )
    reply = lm.Generate(request)
    told = go.ask("generate", SMOLLM2, QUERY, *EXTRA)
    assert told["texts"] == [each.text for each in reply.texts]
    assert told["texts"][0]
    assert told["scores"] == pytest.approx([each.score for each in reply.texts], rel=1e-4)
    assert told["cost"] >= 1
    body = {"model": SMOLLM2, "query": QUERY, "extra_inputs": GREEDY}
    [[text, _]] = served.http.post("/generate", json=body).json()
    assert told["texts"] == [text]


@pytest.mark.nightly
def test_a_stream_in_go_grows_into_the_whole_text(go: GoClient, served: Cell) -> None:
    whole, told = (go.ask(how, SMOLLM2, QUERY, *EXTRA) for how in ("generate", "stream"))
    assert told["texts"] == whole["texts"]
    assert told["scores"] == pytest.approx(whole["scores"], rel=1e-4)
    assert told["pieces"] > 1
    assert told["cost"] >= 1


@pytest.mark.nightly
def test_go_scores_as_python_does(go: GoClient, served: Cell) -> None:
    prefix = "The capital of France is"
    told = go.ask("score", SMOLLM2, prefix, *SUFFIXES)
    with Client(served.plan.admin_address) as client:
        assert told["scores"] == pytest.approx(client.score(SMOLLM2, prefix, SUFFIXES), rel=1e-4)
    assert told["scores"][0] == max(told["scores"])
    assert told["cost"] >= 1


@pytest.mark.nightly
def test_an_error_has_its_code_and_words_in_go(go: GoClient, served: Cell) -> None:
    error = go.ask("generate", SMOLLM2, QUERY, "tempo=1")
    assert error["code"] == "InvalidArgument"
    assert "tempo" in error["message"]
    assert go.ask("publish", SMOLLM2, "llama", "None", "1")["code"] == "AlreadyExists"
    assert go.ask("list", "/sax/test/nosuch")["code"] == "NotFound"
    assert go.ask("watch", "/sax/test/nosuch")["code"] == "NotFound"


@pytest.mark.nightly
def test_a_watch_in_go_follows_a_model_and_outlives_its_admin_server(
    go: GoClient, cell: Cell, tmp_path: Path
) -> None:
    model, server = "/sax/test/watched", f"127.0.0.1:{cell.plan.model_port}"
    assert go.ask("publish", model, "auto", str(write_tiny(tmp_path / "tiny")), "1") is None
    assert go.ask("wait", model, "1") is None
    with go.start("watch", model) as watching:
        assert watching.stdout is not None
        told = map(json.loads, watching.stdout)
        before = _next_with(told, [server])
        cell.kill(ADMIN)
        cell.start(ADMIN)
        cell.eventually(cell.joined, "the model server has joined again")
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
