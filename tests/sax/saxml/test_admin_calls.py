"""Saxml's operator calls, names and tuples as Saxml's users know them."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace

import pytest

import sax
from sax.errors import InvalidName, InvalidRequest, ModelNotFound, UnsupportedParameter
from tests.sax.client.test_blocking_client import Cell
from tests.sax.conftest import MODEL


def test_the_public_names_are_these() -> None:
    assert set(sax.__all__) == {
        *("Publish", "Unpublish", "Update", "List", "ListDetail", "ListAll", "Stats"),
        *("WaitForReady", "GetACL", "SetACL", "AdminOptions", "Options", "ModelOptions"),
        *("Model", "ModelDetail", "ModelServerTypeStat", "Client", "AsyncClient", "WatchEvent"),
        *("SaxError", "CellId", "ModelId", "GenerateRequest", "JoinedServer", "Message"),
        *("LanguageModel", "VisionModel", "AudioModel", "MultimodalModel", "CustomModel"),
        *("StartDebugPort", "Status", "StatusCode", "StatusNotOk"),
        *("ModelSpec", "PublishedModel", "ReplyOptions", "SamplingParams", "TokenChunk"),
    }
    assert all(getattr(sax, name) is not None for name in sax.__all__)
    assert set(sax.__all__) <= set(dir(sax))
    with pytest.raises(AttributeError, match="Publsh"):
        _ = sax.Publsh  # type: ignore[attr-defined]


def test_publish_list_update_unpublish_return_saxmls_values(cell: Cell) -> None:
    name = "/sax/test/new"
    sax.Publish(name, "llama", "/a", 1, {"A": "1"})
    assert sax.List(name) == ("llama", "/a", 0)
    sax.SetACL(name, "acl/all", "lm.generate")
    sax.SetACL(name, "acl/ops")
    sax.Update(name, "llama", "/b", 2)
    detail = sax.ListDetail(name)
    assert (detail.model, detail.ckpt, detail.max_replicas) == ("llama", "/b", 2)
    assert (detail.active_replicas, detail.overrides) == (0, {"A": "1"})
    assert sax.GetACL(name, "lm.generate") == "acl/all"
    assert sax.GetACL(name, "lm.score") == ""
    assert sax.GetACL(name) == "acl/ops"
    assert sax.GetACL(name, "all") == {"lm.generate": "acl/all"}
    assert sax.ListAll("/sax/test") == [MODEL, name]
    sax.Unpublish(name)
    with pytest.raises(ModelNotFound):
        sax.List(name)


def test_details_warn_of_overrides_without_effect(cell: Cell) -> None:
    assert sax.ListDetail(MODEL).warnings == ()
    cell.admin.models[MODEL] = replace(cell.admin.models[MODEL], warnings=("one", "two"))
    assert sax.ListDetail(MODEL).warnings == ("one", "two")


def test_active_replicas_are_ready_ones(cell: Cell) -> None:
    sax.WaitForReady(MODEL, 1)
    assert sax.List(MODEL) == ("counter", "None", 1)
    (stat,) = sax.Stats("/sax/test")
    assert (stat.chip_type, stat.chip_topology, stat.num_replicas) == ("cpu", "1", 0)


def test_a_timeout_is_honoured(cell: Cell) -> None:
    options = sax.AdminOptions()
    assert options.timeout == -1
    options.timeout = 0.05
    with pytest.raises(sax.SaxError, match=r"0\.05 s"):
        sax.WaitForReady(MODEL, 2, options)


def test_a_malformed_name_is_refused() -> None:
    with pytest.raises(InvalidName):
        sax.Model("counter")
    with pytest.raises(InvalidName):
        sax.List("counter")


def test_acls_take_saxmls_keywords(cell: Cell) -> None:
    sax.SetACL(cell_or_model_id=MODEL, acl="alice", method_id="lm.score")
    assert sax.GetACL(cell_or_model_id=MODEL, method_id="lm.score") == "alice"


def test_the_acl_of_a_cell_is_one_for_operators(cell: Cell) -> None:
    sax.SetACL("/sax/test", "alice, bob")
    assert sax.GetACL("/sax/test") == "alice, bob"
    for call in (sax.GetACL, lambda name, method: sax.SetACL(name, "alice", method)):
        with pytest.raises(UnsupportedParameter, match="operators only"):
            call("/sax/test", "lm.score")


def test_errors_are_statuses_to_catch(cell: Cell) -> None:
    with pytest.raises(sax.StatusNotOk) as caught:
        sax.List("/sax/test/nosuch")
    status = caught.value.status
    assert not status.ok()
    assert (status.code(), status.code_int()) == (sax.StatusCode.NOT_FOUND, 5)
    assert "nosuch" in status.message()
    assert status.to_string().startswith("NOT_FOUND: ")


PROGRAM = """
import sys, urllib.request
import sax
sax.StartDebugPort(int(sys.argv[1]))
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics") as page:
    print("python_info" in page.read().decode())
"""


def test_a_process_shows_its_metrics() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-c", PROGRAM, str(port)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=str(port)):
            sax.StartDebugPort(port)
