"""The Modelet and Control faces over real gRPC: loads, unloads and status of arithmetic models, and
whose terms count.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace

import pytest

from model_server.loading.saving import ExportedMethod
from model_server.services.fencing import Fencing
from model_server.services.modelet import ControlService, Modelet, exported_methods
from model_server.serving.admission import Admission
from sax.auth.acl import Principal, enter_call
from sax.auth.security import Security
from sax.errors import (
    CheckpointError,
    CheckpointUnreachable,
    InvalidName,
    InvalidRequest,
    NotLeading,
    NotLoaded,
    PermissionDenied,
    Unavailable,
    UnsupportedParameter,
)
from sax.flags.last_lines import LastLines
from sax.proto import common_pb2, control_pb2, modelet_pb2
from sax.proto.modelet_pb2 import ExportRequest
from sax.types import ModelSpec, ServableStatus, static_version
from sax.wire.servers import decode_status
from tests.model_server.fake_model import FakeModels
from tests.model_server.fake_server import MODEL, OTHER, Served, error_of, lm_request, serving
from tests.model_server.refusals import refusal


async def status_of(served: Served, model: str = MODEL) -> modelet_pb2.GetStatusResponse:
    return await served.modelet.GetStatus(
        modelet_pb2.GetStatusRequest(include_failure_reasons=True, include_method_stats=True)
    )


async def test_status_tells_models_versions_memory_and_method_stats() -> None:
    async with serving(FakeModels()) as served:
        await served.load(OTHER, version="0f" * 16)
        await served.lm.Generate(lm_request())
        await error_of(served.lm.Generate(lm_request("x" * 600)))
        reply = await status_of(served)
        status = decode_status(reply)
        infos = {info.model_id: info for info in status.servables}
        assert infos[OTHER].version == "0f" * 16
        assert status.memory_used == sum(info.memory for info in infos.values()) > 0
        assert status.memory_total > 0
        stats = {
            each.method: each
            for model in reply.models
            if model.model_key == MODEL
            for each in model.method_stats
        }["lm.generate"]
        assert stats.successes_per_second == pytest.approx(1 / 60)
        assert stats.errors_per_second == pytest.approx(1 / 60)
        assert stats.pending_reqs == 0
        assert stats.p50_latency_on_success_per_second > 0
        assert list(stats.recent_batch_sizes) == [1] * 8


async def test_a_failed_load_is_the_calls_error_and_stays_readable() -> None:
    async with serving(FakeModels()) as served:
        error = await error_of(served.load(OTHER, "fake.Truncated"))
        assert isinstance(error, CheckpointError)
        status = decode_status(await status_of(served))
        info = next(info for info in status.servables if info.model_id == OTHER)
        assert info.status is ServableStatus.FAILED
        assert info.reason == "None: tensor lm_head is truncated"
        silent = await served.modelet.GetStatus(modelet_pb2.GetStatusRequest())
        assert {model.failure_reason for model in silent.models} == {""}
        assert (await served.lm.Generate(lm_request())).texts[0].text


async def test_a_server_that_ran_out_of_memory_goes_on() -> None:
    async with serving(FakeModels()) as served:
        error = await error_of(served.load(OTHER, "fake.OutOfMemory"))
        assert "--kv_cache_bytes" in str(error)
        assert (await served.lm.Generate(lm_request())).texts[0].text


async def test_status_answers_while_a_model_loads() -> None:
    models = FakeModels()
    async with serving(models) as served:
        loading = asyncio.ensure_future(served.load(OTHER, "fake.Held"))
        async with asyncio.timeout(60):
            while True:
                status = decode_status(await status_of(served))
                info = next((i for i in status.servables if i.model_id == OTHER), None)
                if info and info.progress and info.progress.phase == "compiling bucket":
                    break
        assert info.status is ServableStatus.LOADING
        assert (await served.lm.Generate(lm_request())).texts[0].text
        models.release.set()
        await loading


async def test_another_checkpoint_is_loaded_in_place_and_the_same_one_is_not() -> None:
    models = FakeModels()
    async with serving(models) as served:
        same = modelet_pb2.UpdateLoadedRequest(model_key=MODEL, checkpoint_path="None")
        await served.modelet.UpdateLoaded(same)
        assert models.loads == ["None"]
        other = modelet_pb2.UpdateLoadedRequest(model_key=MODEL, checkpoint_path="/new")
        await served.modelet.UpdateLoaded(other)
        assert models.loads == ["None", "/new"]
        missing = modelet_pb2.UpdateLoadedRequest(model_key=OTHER, checkpoint_path="/new")
        assert isinstance(await error_of(served.modelet.UpdateLoaded(missing)), NotLoaded)


async def test_acls_are_refused_where_nobody_proves_who_they_are() -> None:
    acls = common_pb2.AccessControlLists(items={"lm.generate": "me"})
    async with serving(FakeModels()) as served:
        for call in (
            served.modelet.Load(
                modelet_pb2.LoadRequest(
                    model_key=OTHER, model_path="fake", checkpoint_path="None", acls=acls
                )
            ),
            served.modelet.UpdateLoaded(
                modelet_pb2.UpdateLoadedRequest(model_key=MODEL, checkpoint_path="None", acls=acls)
            ),
        ):
            assert isinstance(await error_of(call), UnsupportedParameter)


async def test_saxmls_callers_load_nothing_twice_and_unload_nothing_that_is_not_there() -> None:
    """An admin server of ours, which sends its term, asks until it is so."""
    models = FakeModels()
    key = {"model_key": MODEL, "model_path": "fake", "checkpoint_path": "None"}
    async with serving(models) as served:
        load, unload = served.modelet.Load, served.modelet.Unload
        for other in ({}, {"checkpoint_path": "/new"}):
            error = await error_of(load(modelet_pb2.LoadRequest(**{**key, **other})))
            assert isinstance(error, InvalidRequest)
        await load(modelet_pb2.LoadRequest(**key, term=1))
        assert models.loads == ["None"]
        missing = {"model_key": OTHER}
        error = await error_of(unload(modelet_pb2.UnloadRequest(**missing)))
        assert isinstance(error, InvalidRequest)
        await unload(modelet_pb2.UnloadRequest(**missing, term=1))
        await error_of(served.load(OTHER, "fake.Truncated"))
        await served.load(OTHER)  # what failed may be tried again


async def test_a_model_of_another_cell_is_refused() -> None:
    async with serving(FakeModels()) as served:
        error = await error_of(served.load("/sax/prod/fake"))
        assert isinstance(error, InvalidName)
        assert "--sax_cell" in error.text


async def test_an_unloaded_model_is_gone_and_wake_up_changes_nothing() -> None:
    async with serving(FakeModels()) as served:
        await served.modelet.WakeUp(modelet_pb2.WakeUpRequest())
        await served.modelet.Unload(modelet_pb2.UnloadRequest(model_key=MODEL))
        error = await error_of(served.lm.Generate(lm_request()))
        assert isinstance(error, NotLoaded)
        assert decode_status(await status_of(served)).servables == ()


KEPT = ModelSpec(model_id=MODEL, model_path="fake", checkpoint="None", replicas=1)
KEPT = replace(KEPT, version=static_version(KEPT))


async def own_models(served: Served) -> dict[str, bool]:
    """By model, if the server says that it loaded it by its own flags."""
    return {info.model_id: info.own for info in decode_status(await status_of(served)).servables}


async def test_models_of_the_flags_are_told_from_those_of_an_admin_server() -> None:
    async with serving(FakeModels(), static_models=(KEPT,)) as served:
        await served.load(OTHER)
        assert await own_models(served) == {MODEL: True, OTHER: False}


async def test_what_the_flags_loaded_is_not_loaded_again_when_it_is_published() -> None:
    models = FakeModels()
    async with serving(models, static_models=(KEPT,)) as served:
        await served.load(version="0f" * 16)
        assert models.loads == ["None"]
        await served.modelet.Unload(modelet_pb2.UnloadRequest(model_key=MODEL))
        assert isinstance(await error_of(served.lm.Generate(lm_request())), NotLoaded)


async def test_kept_models_outlive_every_order_and_no_others_are_loaded() -> None:
    settings = {"static_models": (KEPT,), "keep_statically_loaded_models": True}
    async with serving(FakeModels(), **settings) as served:
        update = modelet_pb2.UpdateLoadedRequest(model_key=MODEL, checkpoint_path="/other")
        for refused in (
            served.modelet.Unload(modelet_pb2.UnloadRequest(model_key=MODEL)),
            served.modelet.UpdateLoaded(update),
            served.load(OTHER),
            served.load(path="fake.Truncated"),
        ):
            error = await error_of(refused)
            assert isinstance(error, Unavailable)
            assert "--keep_statically_loaded_models" in error.text
        await served.load(version="0f" * 16)
        assert await own_models(served) == {MODEL: True}
        assert (await served.lm.Generate(lm_request())).texts[0].text
        assert served.server.info().model_paths == ("fake",)


async def test_a_server_without_roots_saves_and_exports_nothing() -> None:
    async with serving(FakeModels()) as served:
        for call in (
            served.modelet.Save(modelet_pb2.SaveRequest(model_key=MODEL, checkpoint_path="/m")),
            served.modelet.Export(
                modelet_pb2.ExportRequest(
                    model_key=MODEL, method_names=["lm.score"], export_path="/m"
                )
            ),
        ):
            error = await error_of(call)
            assert isinstance(error, InvalidRequest)
            assert "--checkpoint_roots" in error.text


async def test_only_what_is_loaded_is_saved_and_exported() -> None:
    async with serving(FakeModels()) as served:
        for call in (
            served.modelet.Save(modelet_pb2.SaveRequest(model_key=OTHER, checkpoint_path="/m")),
            served.modelet.Export(
                modelet_pb2.ExportRequest(
                    model_key=OTHER, method_names=["lm.score"], export_path="/m"
                )
            ),
        ):
            assert isinstance(await error_of(call), NotLoaded)


def test_the_only_method_has_saxmls_usual_signature() -> None:
    request = ExportRequest(method_names=["lm.score"])
    assert exported_methods(request) == (ExportedMethod("lm.score", "serving_default"),)


def test_several_methods_have_signatures_of_their_own() -> None:
    request = ExportRequest(
        method_names=["lm.score", "lm.score"],
        signatures=["a", "b"],
        serialized_model_format=ExportRequest.JAX_EXPORT,
    )
    assert [method.signature for method in exported_methods(request)] == ["a", "b"]


def test_names_that_make_no_files_are_refused() -> None:
    for names, signatures in (
        ([], []),
        (["lm.score", "lm.score"], []),
        (["lm.score"], ["a", "b"]),
        (["lm.score", "lm.score"], ["a", "a"]),
        (["lm.score"], ["../a"]),
        (["lm.score"], [".hidden"]),
        (["lm.score"], ["a" * 65]),
    ):
        request = ExportRequest(method_names=names, signatures=signatures)
        assert refusal(exported_methods, request).kind is InvalidRequest, (names, signatures)


def test_what_is_not_written_is_refused_by_its_field() -> None:
    fields = {field.name for field in ExportRequest.DESCRIPTOR.fields}
    for request, words in (
        (ExportRequest(serialized_model_format=ExportRequest.TF_SAVEDMODEL_V0), "SavedModel"),
        (ExportRequest(rng_seed_mode=ExportRequest.STATELESS), "no random numbers"),
        (ExportRequest(enable_gpu_multi_device_execution=True), "one device"),
    ):
        told = refusal(exported_methods, request)
        assert (told.kind, words in told.text) == (UnsupportedParameter, True), told
        assert told.param in fields, told


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


async def test_only_who_may_load_models_may_dispute_check_and_read_the_log() -> None:
    service = ControlService(Fencing(), lambda path, overrides: None, CLOSED)
    enter_call(Principal("alice"))
    with pytest.raises(PermissionDenied):
        await service.Dispute(control_pb2.DisputeRequest(term=7, disputed_term=9), None)
    with pytest.raises(PermissionDenied):
        await service.Check(control_pb2.CheckRequest(model_path="x"), None)
    with pytest.raises(PermissionDenied, match="may not change weights"):
        await service.Weights(control_pb2.WeightsRequest(model_id=MODEL, action="status"), None)
    with pytest.raises(PermissionDenied, match="may not read the log"):
        await service.Log(control_pb2.LogRequest(), None)


async def test_the_last_lines_of_the_log_are_told() -> None:
    logger, handler = logging.getLogger("tests.modelet"), LastLines()
    logger.addHandler(handler)
    logger.warning("a device is slow")
    logger.removeHandler(handler)
    async with serving(FakeModels()) as served:
        told = [line.text for line in (await served.control.Log(control_pb2.LogRequest())).lines]
    assert "a device is slow" in told


async def test_a_paused_model_computes_nothing_and_weights_that_cannot_change_stay() -> None:
    async with serving(FakeModels()) as served:

        async def ask(action: str, model: str = MODEL) -> control_pb2.ReplicaWeights:
            request = control_pb2.WeightsRequest(model_id=model, action=action, source="/x")
            return await served.control.Weights(request)

        told = await ask("status")
        assert (told.version, told.state) == ("0", "serving")
        assert (await ask("pause")).state == "paused"
        waiting = asyncio.ensure_future(served.lm.Generate(lm_request()))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert (await ask("resume")).state == "serving"
        assert (await waiting).texts[0].text
        for action in ("update", "sleep"):
            error = await error_of(ask(action))
            assert isinstance(error, Unavailable), action
            assert "does not read weights" in str(error), action
        assert isinstance(await error_of(ask("pause", OTHER)), NotLoaded)


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
