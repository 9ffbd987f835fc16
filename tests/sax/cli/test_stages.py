"""Stages: how far a model is, in words."""

from __future__ import annotations

from sax.cli.stages import ProgressStage, failure, reason, replica_stages, summary
from sax.types import ModelSpec, Progress, PublishedModel, ReplicaStatus, ServableStatus

NAME = "/sax/test/m"


def published(*replicas: ReplicaStatus, wanted: int = 1) -> PublishedModel:
    spec = ModelSpec(model_id=NAME, model_path="llama", checkpoint="/c", replicas=wanted)
    return PublishedModel(spec, replicas)


def loading(progress: Progress | None) -> ReplicaStatus:
    return ReplicaStatus("a:1", ServableStatus.LOADING, progress=progress)


READY = ReplicaStatus("a:1", ServableStatus.LOADED)


def test_a_loading_replica_shows_its_phase_and_count() -> None:
    model = published(loading(Progress("compiling bucket", 3, 8)))
    assert replica_stages(model) == [ProgressStage(NAME, "compiling bucket", 3, 8)]
    assert summary(model) == "compiling bucket 3 of 8"


def test_bytes_are_told_in_mebibytes() -> None:
    stage = ProgressStage(NAME, "reading weights", 12 << 20, 90 << 20, "bytes")
    assert stage.text == "reading weights 12 of 90 MiB"


def test_another_unit_is_named() -> None:
    assert (
        ProgressStage(NAME, "reading weights", 1, 2, "tensors").text
        == "reading weights 1 of 2 tensors"
    )


def test_a_phase_without_a_count_is_only_named() -> None:
    assert summary(published(loading(None))) == "starting"


def test_every_wanted_replica_has_a_stage_even_when_the_admin_lists_fewer() -> None:
    stages = replica_stages(published(READY, wanted=2))
    assert [stage.name for stage in stages] == [
        f"{NAME} replica 1 of 2",
        f"{NAME} replica 2 of 2",
    ]
    assert [stage.phase for stage in stages] == ["ready", "waiting for a server"]


def test_a_model_is_ready_when_all_its_replicas_are() -> None:
    assert summary(published(READY)) == "ready"
    assert summary(published(READY, wanted=2)) == "waiting for a server"
    assert summary(published(wanted=0)) == "no replicas wanted"


def test_the_reason_of_a_failed_replica_is_told_once() -> None:
    broken = ReplicaStatus("a:1", ServableStatus.FAILED, reason="file is cut short")
    model = published(broken, broken, wanted=2)
    assert reason(model) == "file is cut short"
    assert failure(model) == "file is cut short"
    assert summary(model) == "failed"


def test_a_replica_that_waits_for_a_server_has_not_failed() -> None:
    waiting = ReplicaStatus("", ServableStatus.NONE, reason="no model server has joined")
    assert failure(published(waiting)) is None
    assert reason(published(waiting)) == "no model server has joined"


def test_a_replica_without_a_server_tells_what_it_waits_for() -> None:
    nowhere = ReplicaStatus("", ServableStatus.NONE, "needs 32 devices; the largest server has 8")
    (stage,) = replica_stages(published(nowhere))
    assert stage.told == ("waiting for a server: needs 32 devices; the largest server has 8")
    assert stage.text == summary(published(nowhere)) == "waiting for a server"
    (stage,) = replica_stages(published(READY))
    assert stage.told == "ready"


def test_a_failed_replica_is_told_before_one_that_is_still_loading() -> None:
    failed = ReplicaStatus("b:1", ServableStatus.FAILED, "cut short")
    assert summary(published(loading(None), failed, wanted=2)) == "failed"
