"""The Control face over real gRPC, and whose terms count."""

from __future__ import annotations

import threading

import pytest

from model_server.services.fencing import Fencing
from model_server.services.modelet import ControlService, Modelet
from model_server.serving.admission import Admission
from sax.auth.acl import Principal, enter_call
from sax.auth.security import Security
from sax.errors import CheckpointUnreachable, InvalidRequest, NotLeading, PermissionDenied
from sax.proto import control_pb2, modelet_pb2
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import error_of, serving

CLOSED = Security(tokens="tokens", admin_acl="ops")


async def test_a_term_of_a_user_without_rights_does_not_count() -> None:
    async with serving(FakeModels()) as served:
        fencing = Fencing()
        modelet = Modelet(
            served.server.servables,
            Admission(),
            cell="",
            incarnation="1",
            memory=0,
            fencing=fencing,
            security=CLOSED,
        )
        for name, term in (("alice", 9), ("", 9), ("ops", 7)):
            enter_call(Principal(name))
            await modelet.GetStatus(modelet_pb2.GetStatusRequest(term=term), None)
        enter_call(Principal("ops"))
        with pytest.raises(NotLeading, match="term 7"):
            await modelet.GetStatus(modelet_pb2.GetStatusRequest(term=5), None)


async def test_only_who_may_load_models_may_dispute_and_check() -> None:
    service = ControlService(Fencing(), lambda path, overrides: None, CLOSED)
    enter_call(Principal("alice"))
    with pytest.raises(PermissionDenied):
        await service.Dispute(control_pb2.DisputeRequest(term=7, disputed_term=9), None)
    with pytest.raises(PermissionDenied):
        await service.Check(control_pb2.CheckRequest(model_path="x"), None)


async def test_a_server_recovers_from_a_bogus_term_by_a_dispute() -> None:
    async with serving(FakeModels()) as served:
        status = served.modelet.GetStatus
        await status(modelet_pb2.GetStatusRequest(term=10**11))
        refusal = await error_of(status(modelet_pb2.GetStatusRequest(term=7)))
        assert isinstance(refusal, NotLeading)
        dispute = control_pb2.DisputeRequest(term=7, disputed_term=int(refusal.param or ""))
        await served.control.Dispute(dispute)
        await status(modelet_pb2.GetStatusRequest(term=7))
        error = await error_of(status(modelet_pb2.GetStatusRequest(term=10**11)))
        assert isinstance(error, NotLeading)


async def test_a_check_names_the_override_that_means_nothing() -> None:
    cases = [
        ("llama", {"NO_SUCH": "1"}, "NO_SUCH"),
        ("llama", {"MAX_CONTEXT": '"long"'}, "MAX_CONTEXT"),
        ("llama", {"DTYPE": '"float7"'}, "DTYPE"),
        ("auto", {"QUANTIZE": '"int3"'}, "QUANTIZE"),
        ("saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest", {"SPM_MODEL": "4"}, "SPM_MODEL"),
    ]
    async with serving(FakeModels()) as served:
        for path, overrides, key in cases:
            request = control_pb2.CheckRequest(model_path=path, overrides=overrides)
            error = await error_of(served.control.Check(request))
            assert isinstance(error, InvalidRequest), key
            assert error.param == f"overrides.{key}"


async def test_a_check_lets_everything_pass_that_some_checkpoint_could_take() -> None:
    async with serving(FakeModels()) as served:
        for path in ("llama", "auto", "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"):
            overrides = {"MAX_CONTEXT": "100", "DTYPE": '"float32"', "QUANTIZE": '"int8"'}
            await served.control.Check(
                control_pb2.CheckRequest(model_path=path, overrides=overrides)
            )


async def test_a_checkpoint_is_answered_with_its_commit_and_no_hub_is_awaited_for_long() -> None:
    never = threading.Event()

    def pin(checkpoint: str) -> str:
        if checkpoint == "hf://acme/hangs":
            never.wait(30)
        return f"{checkpoint}@c0ffee"

    def serving_for(pin_s: float) -> ControlService:
        return ControlService(
            Fencing(), lambda path, overrides: None, pin_checkpoint=pin, pin_s=pin_s
        )

    service = serving_for(60)
    request = control_pb2.CheckRequest(model_path="x", checkpoint="hf://acme/tiny")
    assert (await service.Check(request, None)).checkpoint == "hf://acme/tiny@c0ffee"
    assert (await service.Check(control_pb2.CheckRequest(model_path="x"), None)).checkpoint == ""
    request.checkpoint = "hf://acme/hangs"
    try:
        with pytest.raises(CheckpointUnreachable, match="did not answer within 0.2 s"):
            await serving_for(0.2).Check(request, None)
    finally:
        never.set()
