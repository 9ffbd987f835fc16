"""The published state: what is accepted, what is refused, and when a version is new."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin_server.ledger.records import decode_record, encode_record
from admin_server.ledger.state import (
    CellState,
    apply,
    decode_state,
    encode_state,
    grant_record,
    publish_record,
    unpublish_record,
    update_record,
)
from sax.errors import InvalidName, InvalidRequest, ModelExists, ModelNotFound, NotFound
from sax.types import Autoscaling, ModelSpec
from tests.each_case import each_case

EMPTY = CellState("/sax/test")
A, B = "a" * 32, "b" * 32


def spec(model: str = "m", **changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/ckpt", "replicas": 1, **changes}
    return ModelSpec(model_id=f"/sax/test/{model}", **settings)


def published(*specs: ModelSpec) -> CellState:
    state = EMPTY
    for one in specs:
        state = apply(state, publish_record(state, one, version=A, at_s=0), 1)
    return state


def test_a_published_model_is_found_with_the_version_it_was_given():
    assert published(spec()).find("/sax/test/m").version == A


def test_applying_a_record_leaves_the_state_before_it_as_it_was():
    published(spec())
    assert EMPTY.models == {}


def test_a_second_publish_of_a_name_is_refused():
    with pytest.raises(ModelExists, match="/sax/test/m is already published"):
        publish_record(published(spec()), spec(), version=B, at_s=0)


def test_a_list_of_the_cell_is_kept_through_records_and_snapshots():
    record = grant_record(EMPTY, "alice", at_s=1, by="root")
    assert decode_record(encode_record(record)) == record
    state = apply(published(spec()), record, 2)
    assert decode_state(encode_state(state)) == state
    assert (state.admin_acl, [*state.models]) == ("alice", ["/sax/test/m"])
    assert grant_record(state, "alice", at_s=2) is None
    assert apply(state, grant_record(state, "", at_s=3), 3).admin_acl == ""


@pytest.mark.parametrize("acl", ["a b", "x" * 100_000])
def test_a_list_of_the_cell_that_none_could_be_is_refused(acl):
    with pytest.raises(InvalidRequest) as caught:
        grant_record(EMPTY, acl, at_s=0)
    assert caught.value.param == "admin_acl"


def test_a_snapshot_from_before_there_were_lists_of_a_cell_is_read():
    old = json.loads(encode_state(published(spec())))
    del old["admin_acl"]
    assert decode_state(json.dumps(old).encode()) == published(spec())


def adapter(model: str, base: str) -> ModelSpec:
    return spec(model, model_path="lora", overrides={"BASE": json.dumps(base)})


def test_the_base_of_adapters_cannot_be_unpublished():
    state = published(spec(), adapter("one", "/sax/test/m"), adapter("two", "/sax/test/m"))
    with pytest.raises(InvalidRequest, match="base of /sax/test/one, /sax/test/two: unpublish"):
        unpublish_record(state, "/sax/test/m", at_s=0)
    assert unpublish_record(state, "/sax/test/one", at_s=0).model_id == "/sax/test/one"


@each_case(
    "base, said",
    [
        ("", "name the model that the adapter belongs to"),
        ("m", "name the model that the adapter belongs to"),
        ("/sax/other/m", "it is in another cell"),
        ("/sax/test/new", "it is an adapter itself"),
        ("/sax/test/one", "it is an adapter itself"),
    ],
)
def test_an_adapter_needs_a_base_that_can_serve_it(base: str, said: str):
    state = published(spec(), adapter("one", "/sax/test/m"))
    with pytest.raises(InvalidRequest, match=said) as caught:
        publish_record(state, adapter("new", base), version=B, at_s=0)
    assert caught.value.param == "overrides.BASE"


def test_an_adapter_may_be_published_before_its_base():
    assert published(adapter("early", "/sax/test/later")).find("/sax/test/early").version == A


def test_an_unknown_model_is_refused_with_the_nearest_names():
    with pytest.raises(ModelNotFound, match="near names: /sax/test/smollm2"):
        published(spec("smollm2")).find("/sax/test/smollm")


def test_a_model_of_another_cell_is_refused_and_both_cells_are_named():
    with pytest.raises(NotFound, match=r"is for cell /sax/test, not /sax/other"):
        EMPTY.find("/sax/other/m")


@each_case(
    "changes, error, param",
    [
        ({"model": "BAD"}, InvalidName, "model"),
        ({"model_path": "9 lives"}, InvalidName, "model_path"),
        ({"model_path": ""}, InvalidName, "model_path"),
        ({"checkpoint": "a b"}, InvalidName, "checkpoint"),
        ({"checkpoint": ""}, InvalidName, "checkpoint"),
        ({"replicas": -1}, InvalidRequest, "replicas"),
        ({"replicas": 2**31 - 1}, InvalidRequest, "replicas"),
        ({"overrides": {"DTYPE": "bfloat16"}}, InvalidRequest, "overrides"),
        ({"overrides": {"X": "NaN"}}, InvalidRequest, "overrides"),
        ({"acls": {"lm.generate": "a b"}}, InvalidRequest, "acls"),
        ({"acls": {"lm.genrate": "alice"}}, InvalidRequest, "acls"),
        ({"acls": {"lm.generate": ",".join(f"n{i}" for i in range(1001))}}, InvalidRequest, "acls"),
        ({"admin_acl": "alice,,bob"}, InvalidRequest, "admin_acl"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(changes, error, param):
    with pytest.raises(error) as refusal:
        publish_record(EMPTY, spec(**changes), version=A, at_s=0)
    assert refusal.value.param == param


def test_a_model_may_be_published_with_no_replicas():
    assert publish_record(EMPTY, spec(replicas=0), version=A, at_s=0).spec.replicas == 0


@pytest.mark.parametrize("changes", [{"checkpoint": "/new"}, {"overrides": {"LAYERS": "2"}}])
def test_an_update_of_what_is_loaded_gets_a_new_version(changes):
    record = update_record(published(spec()), spec(**changes), version=B, at_s=0)
    assert record is not None
    assert record.spec.version == B


def test_an_update_of_the_replicas_keeps_the_version():
    record = update_record(published(spec()), spec(replicas=3), version=B, at_s=0)
    assert record is not None
    assert (record.spec.replicas, record.spec.version) == (3, A)


def test_an_update_that_changes_nothing_makes_no_record():
    assert update_record(published(spec()), spec(), version=B, at_s=0) is None


def test_an_update_without_path_and_checkpoint_keeps_both():
    blank = spec(model_path="", checkpoint="", replicas=2)
    record = update_record(published(spec()), blank, version=B, at_s=0)
    assert record is not None
    assert (record.spec.model_path, record.spec.checkpoint) == ("llama", "/ckpt")


def test_the_model_path_cannot_be_updated():
    with pytest.raises(InvalidRequest, match="is llama and cannot change") as refusal:
        update_record(published(spec()), spec(model_path="gemma"), version=B, at_s=0)
    assert refusal.value.param == "model_path"


@pytest.mark.parametrize("make", [update_record, publish_record])
def test_an_update_is_checked_as_a_publish_is(make):
    state = published(spec()) if make is update_record else EMPTY
    with pytest.raises(InvalidRequest):
        make(state, spec(replicas=-2), version=B, at_s=0)


def test_an_unpublished_name_can_be_published_again():
    state = published(spec())
    state = apply(state, unpublish_record(state, "/sax/test/m", at_s=1), 2)
    assert publish_record(state, spec(), version=B, at_s=2).spec.version == B


def test_an_unknown_model_cannot_be_updated_or_unpublished():
    with pytest.raises(ModelNotFound):
        update_record(EMPTY, spec(), version=A, at_s=0)
    with pytest.raises(ModelNotFound):
        unpublish_record(EMPTY, "/sax/test/m", at_s=0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
specs = st.builds(
    spec,
    model=st.sampled_from("abc"),
    checkpoint=st.sampled_from(["/one", "/two", "None"]),
    replicas=st.integers(0, 5),
    overrides=st.dictionaries(st.text(min_size=1), json_values.map(json.dumps), max_size=3),
)


@pytest.mark.extended
@given(st.lists(specs, max_size=8))
def test_records_and_states_survive_being_written(history):
    state = EMPTY
    for number, one in enumerate(history):
        if one.model_id in state.models:
            record = update_record(state, one, version=f"{number:032x}", at_s=number)
        else:
            record = publish_record(state, one, version=f"{number:032x}", at_s=number)
        if record is not None:
            assert decode_record(encode_record(record)) == record
            state = apply(state, record, number + 1)
    assert decode_state(encode_state(state)) == state


def test_bad_bounds_of_autoscaling_are_refused_at_a_publish_and_at_an_update():
    bad = Autoscaling(min_replicas=2, max_replicas=1)
    with pytest.raises(InvalidRequest) as refusal:
        publish_record(EMPTY, spec(autoscaling=bad), version=B, at_s=0)
    assert refusal.value.param == "autoscaling.min_replicas"
    with pytest.raises(InvalidRequest):
        update_record(published(spec()), spec(autoscaling=bad), version=B, at_s=0)


def test_a_change_of_autoscaling_alone_loads_nothing_anew():
    state = published(spec())
    bounds = Autoscaling(min_replicas=0, max_replicas=4, target_queue=2.5)
    record = update_record(state, spec(autoscaling=bounds), version=B, at_s=1)
    assert record is not None
    assert (record.spec.version, record.spec.autoscaling) == (A, bounds)
    assert decode_record(encode_record(record)) == record
    # Who does not know the revision may not know of autoscaling either: then it stays.
    assert update_record(apply(state, record, 2), spec(), version=B, at_s=2) is None
    off = update_record(apply(state, record, 2), spec(revision=2), version=B, at_s=2)
    assert off is not None
    assert (off.spec.version, off.spec.autoscaling) == (A, None)
