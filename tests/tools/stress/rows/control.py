"""Attacks on the control plane: its state folder, and the terms of its leaders."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
import pytest

from sax.auth.credentials import SCHEME, TOKEN_KEY
from sax.proto import admin_pb2, modelet_pb2
from tests.end_to_end.cell import Cell
from tests.tools.stress.cells import OPERATOR
from tests.tools.stress.row import row

_LIES_S = 8.0
_TERMS = (2**62, 10**11, 10**6)
_numbers = itertools.count()


@row("the state folder deleted under the running leader", fresh=True)
def deleted_state(cell: Cell) -> str:
    state = cell.plan.folder / "state"
    shutil.rmtree(state)
    with admin(cell) as call, pytest.raises(grpc.RpcError) as refusal:
        call("Publish", publishing("after"))
    assert "deleted or replaced" in str(refusal.value), str(refusal.value)
    with admin(cell) as call:
        listed = call("List", admin_pb2.ListRequest(model_id="/sax/test"))
    assert [one.model.model_id for one in listed.published_models] == ["/sax/test/smollm2"]
    ready = httpx.get(f"http://127.0.0.1:{cell.plan.status_port}/readyz", trust_env=False)
    assert ready.status_code == 503, ready.text
    assert "deleted or replaced" in ready.json()["reason"]
    assert not state.exists(), "the folder was made again, empty"
    return "publish refused, /readyz 503 with the reason; generation goes on"


@row("a user without rights tells a model server of later leaders", tokens=True)
def lies_about_the_leader(cell: Cell) -> str:
    before = role(cell)
    done, lies = threading.Event(), list[int]()
    liar = threading.Thread(target=lie, args=(cell, done, lies))
    liar.start()
    try:
        changes = publish_for(cell, _LIES_S)
    finally:
        done.set()
        liar.join()
    assert lies, "nothing was told"
    assert role(cell) == before, f"{before}, then {role(cell)}"
    return f"{changes} changes acknowledged beside {len(lies)} lies, the same leader"


def lie(cell: Cell, done: threading.Event, lies: list[int]) -> None:
    address = f"127.0.0.1:{cell.plan.model_port}"
    with grpc.insecure_channel(address) as channel:
        status = channel.unary_unary(
            "/sax.Modelet/GetStatus",
            modelet_pb2.GetStatusRequest.SerializeToString,
            modelet_pb2.GetStatusResponse.FromString,
        )
        for term in itertools.cycle(_TERMS):
            if done.wait(0.05):
                return
            request = modelet_pb2.GetStatusRequest(term=term)
            status(request, timeout=10, metadata=identity(cell, "alice"))
            lies.append(term)


def publish_for(cell: Cell, seconds: float) -> int:
    """Publish, update and unpublish models without replicas; returns how many changes."""
    until, changes = time.monotonic() + seconds, 0
    with admin(cell) as call:
        while time.monotonic() < until:
            change = publishing(f"told{next(_numbers)}")
            call("Publish", change)
            change.model.checkpoint_path = "/another"
            call("Update", admin_pb2.UpdateRequest(model=change.model))
            call("Unpublish", admin_pb2.UnpublishRequest(model_id=change.model.model_id))
            changes += 3
            time.sleep(0.1)
    return changes


def publishing(name: str) -> admin_pb2.PublishRequest:
    model = admin_pb2.Model(
        model_id=f"/sax/test/{name}",
        model_path="llama",
        checkpoint_path="/one",
        requested_num_replicas=0,
    )
    return admin_pb2.PublishRequest(model=model)


def role(cell: Cell) -> str:
    """The part of the admin server since which record it leads."""
    url = f"http://127.0.0.1:{cell.plan.status_port}/healthz"
    text: str = httpx.get(url, trust_env=False).json()["role"]
    return text


@contextmanager
def admin(cell: Cell) -> Iterator[Callable[[str, Any], Any]]:
    """Calls to the Admin service as the operator."""
    with grpc.insecure_channel(cell.plan.admin_address) as channel:

        def call(method: str, request: Any) -> Any:
            kind = type(request)
            reply = getattr(admin_pb2, kind.__name__.replace("Request", "Response"))
            sends = channel.unary_unary(
                f"/sax.Admin/{method}", kind.SerializeToString, reply.FromString
            )
            return sends(request, timeout=10, metadata=identity(cell, OPERATOR))

        yield call


def identity(cell: Cell, name: str) -> tuple[tuple[str, str], ...]:
    people = cell.identities
    return ((TOKEN_KEY, SCHEME + people.tokens[name]),) if people is not None else ()
