"""Records of canaries: what starts one, what becomes of it, and what is refused meanwhile."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from admin_server.ledger.canaries import abort_record, canary_record, promote_record
from admin_server.ledger.records import decode_record, encode_record, kind_of, version_of
from admin_server.ledger.state import (
    CellState,
    apply,
    decode_state,
    encode_state,
    publish_record,
    rollback_record,
    update_record,
)
from sax.errors import InvalidRequest, ModelNotFound, StaleRevision
from sax.types import Autoscaling, Canary, ModelSpec
from tests.each_case import each_case

M = "/sax/test/m"
A, B, C = "a" * 32, "b" * 32, "c" * 32
SPEC = ModelSpec(model_id=M, model_path="llama", checkpoint="/one", replicas=4)


def published(**changes) -> CellState:
    state = CellState("/sax/test")
    record = publish_record(state, replace(SPEC, **changes), version=A, at_s=0)
    return apply(state, record, 1)


def started(state: CellState | None = None, **changes) -> CellState:
    state = state or published()
    record = canary(state, **changes)
    assert record is not None
    return apply(state, record, 2)


def canary(state: CellState, checkpoint="/two", overrides=None, percent=10.0, **more):
    more = {"version": B, "at_s": 1, **more}
    return canary_record(state, M, checkpoint, overrides or {}, percent, **more)


def test_a_canary_is_beside_the_version_of_the_model():
    spec = started().models[M]
    assert (spec.checkpoint, spec.version, spec.revision) == ("/one", A, 2)
    assert spec.canary == Canary(version=B, checkpoint="/two", percent=10)


def test_its_record_says_what_it_is_and_where():
    record = canary(published())
    assert (kind_of(record), record.note) == ("canary", "canary of /two at 10 %, on 1 replica of 4")
    lone = canary(published(replicas=1))
    assert lone.note.endswith("on a second replica: it needs one more server")
    scaled = canary(published(autoscaling=Autoscaling(max_replicas=9)))
    assert scaled.note == "canary of /two at 10 %"


def test_a_promoted_canary_is_the_version_and_one_can_roll_back_from_it():
    state = started()
    record = promote_record(state, M, at_s=2)
    assert (kind_of(record), version_of(record)) == ("promote", B)
    state = apply(state, record, 3)
    spec = state.models[M]
    assert (spec.checkpoint, spec.version, spec.canary, spec.revision) == ("/two", B, None, 3)
    assert spec.promoted == 10
    back = rollback_record(state, M, "", at_s=3)
    assert back is not None
    assert back.version == A
    assert apply(state, back, 4).models[M].promoted == 0
    scaled = update_record(state, replace(spec, replicas=7, promoted=0.0), version=C, at_s=3)
    assert scaled.spec.promoted == 10
    newer = update_record(state, replace(spec, checkpoint="/three"), version=C, at_s=3)
    assert newer.spec.promoted == 0


def test_an_aborted_canary_leaves_only_its_name():
    state = started()
    record = abort_record(state, M, at_s=2)
    assert kind_of(record) == "abort"
    after = apply(state, record, 3)
    assert after.models[M] == replace(published().models[M], revision=3, aborted=B)
    assert after.versions == published().versions


def test_the_name_of_an_aborted_canary_survives_an_update():
    state = started()
    state = apply(state, abort_record(state, M, at_s=2), 3)
    new = replace(state.models[M], replicas=7, aborted="")
    assert update_record(state, new, version=C, at_s=3).spec.aborted == B


def test_the_same_canary_again_only_changes_its_share():
    state = started()
    assert canary(state, version=C) is None
    grown = canary(state, percent=50.0, version=C).spec.canary
    assert grown == Canary(version=B, checkpoint="/two", percent=50)


def test_a_canary_of_a_canary_is_refused_with_what_to_do_first():
    with pytest.raises(InvalidRequest, match=f"sax promote {M}` or `sax abort {M}"):
        canary(started(), checkpoint="/three")


@pytest.mark.parametrize(
    "change", [{"checkpoint": "/three"}, {"overrides": {"A": "1"}}, {"checkpoint": "/two"}]
)
def test_what_is_loaded_does_not_change_beside_a_canary(change):
    state = started()
    with pytest.raises(InvalidRequest, match="before an update of what is loaded"):
        update_record(state, replace(state.models[M], **change), version=C, at_s=2)


def test_the_rest_does_and_old_clients_keep_a_canary_they_do_not_know():
    state = started()
    for revision in (0, 2):
        new = replace(state.models[M], replicas=7, canary=None, revision=revision)
        record = update_record(state, new, version=C, at_s=2)
        assert record.spec.canary == state.models[M].canary
        assert record.spec.replicas == 7


def test_a_rollback_waits_for_the_end_of_a_canary():
    state = published()
    record = update_record(state, replace(SPEC, checkpoint="/zero"), version=C, at_s=1)
    state = started(apply(state, record, 2))
    with pytest.raises(InvalidRequest, match="before a rollback"):
        rollback_record(state, M, "", at_s=2)


@each_case(
    "change, param",
    [
        ({"checkpoint": "/one"}, "canary"),
        ({"checkpoint": ""}, "canary"),
        ({"percent": 0.0}, "canary"),
        ({"percent": 100.0}, "canary"),
        ({"percent": float("nan")}, "canary"),
        ({"overrides": {"A": "no json"}}, "overrides"),
        ({"checkpoint": "x" * 5000}, "checkpoint"),
    ],
)
def test_nonsense_is_refused_by_its_field(change, param):
    with pytest.raises(InvalidRequest) as refused:
        canary(published(), **change)
    assert refused.value.param == param


def test_what_is_not_there_is_refused():
    for end in (promote_record, abort_record):
        with pytest.raises(InvalidRequest, match="--canary 10%"):
            end(published(), M, at_s=1)
        with pytest.raises(ModelNotFound):
            end(published(), "/sax/test/other", at_s=1)
    with pytest.raises(StaleRevision):
        canary(published(), revision=7)
    with pytest.raises(InvalidRequest, match="publish it first"):
        publish_record(
            CellState("/sax/test"),
            replace(SPEC, canary=Canary(version=B, checkpoint="/two", percent=1)),
            version=A,
            at_s=0,
        )


def test_records_and_states_with_canaries_are_read_again():
    state = started()
    record = canary(published())
    assert decode_record(encode_record(record)) == record
    assert decode_state(encode_state(state)) == state


def test_an_admin_server_from_before_canaries_reads_the_record_and_knows_the_model():
    fields = msgspec.json.decode(encode_record(canary(published())))
    assert fields["type"] == "update"
    assert fields["spec"]["checkpoint"] == "/one"


def test_a_log_from_before_canaries_has_none():
    fields = msgspec.json.decode(encode_record(canary(published())))
    del fields["spec"]["canary"], fields["action"]
    record = decode_record(msgspec.json.encode(fields))
    assert record.spec.canary is None
    assert kind_of(record) == "update"
