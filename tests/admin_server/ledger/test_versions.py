"""Versions: each names one content for ever, and a rollback finds the way back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin_server.ledger.records import (
    Publish,
    Rollback,
    Unpublish,
    Update,
    decode_record,
    encode_record,
)
from admin_server.ledger.state import (
    CellState,
    apply,
    decode_state,
    encode_state,
    publish_record,
    rollback_record,
    unpublish_record,
    update_record,
)
from admin_server.ledger.versions import KEPT, listed
from sax.errors import InvalidRequest, ModelNotFound, NotFound, StaleRevision
from sax.types import Autoscaling, ModelSpec, Placement

M = "/sax/test/m"
EMPTY = CellState("/sax/test")


def spec(**changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/v1", "replicas": 1, **changes}
    return ModelSpec(model_id=M, **settings)


def uuid(number: int) -> str:
    return f"{number:032x}"


class Story:
    """Records made and applied one after the other; record n makes version n if it makes one."""

    def __init__(self) -> None:
        self.state = EMPTY
        self.sequence = 0

    def take(self, make, *args, **named):
        record = make(self.state, *args, at_s=float(self.sequence), **named)
        if record is not None:
            assert decode_record(encode_record(record)) == record
            self.sequence += 1
            self.state = apply(self.state, record, self.sequence)
        return record

    def publish(self, **changes):
        return self.take(publish_record, spec(**changes), version=uuid(self.sequence + 1))

    def update(self, **changes):
        return self.take(update_record, spec(**changes), version=uuid(self.sequence + 1))

    def rollback(self, version: str = ""):
        return self.take(rollback_record, M, version)

    @property
    def spec(self) -> ModelSpec:
        return self.state.models[M]

    @property
    def known(self) -> list[str]:
        return [one.version for one in listed(self.state.versions[M], self.spec)]


def test_a_rollback_restores_the_older_versions_id_and_content():
    story = Story()
    story.publish(overrides={"A": "1"})
    story.update(checkpoint="/v2")
    story.rollback()
    assert (story.spec.version, story.spec.checkpoint) == (uuid(1), "/v1")
    assert story.spec.overrides == {"A": "1"}


def test_a_rollback_keeps_what_is_not_loaded_as_it_is_now():
    story = Story()
    story.publish()
    now = {
        "replicas": 5,
        "placement": Placement(tags=("big",)),
        "autoscaling": Autoscaling(max_replicas=7),
    }
    story.update(checkpoint="/v2", **now)
    story.rollback()
    assert story.spec.checkpoint == "/v1"
    assert {name: getattr(story.spec, name) for name in now} == now


def test_a_rollback_names_any_version_that_is_kept():
    story = Story()
    story.publish()
    story.update(checkpoint="/v2")
    story.update(checkpoint="/v3")
    story.rollback(uuid(1))
    assert story.spec.checkpoint == "/v1"
    story.rollback(uuid(3))
    assert story.spec.checkpoint == "/v3"


def test_rollbacks_without_a_name_go_further_and_further_back():
    story = Story()
    story.publish()
    story.update(checkpoint="/v2")
    story.update(checkpoint="/v3")
    story.rollback()
    assert story.spec.checkpoint == "/v2"
    story.rollback()
    assert story.spec.checkpoint == "/v1"
    with pytest.raises(InvalidRequest, match="nothing to go back to") as refusal:
        story.rollback()
    assert refusal.value.param == "version"
    assert uuid(3) in refusal.value.text


def test_after_a_rollback_and_an_update_the_way_back_is_to_what_served_before():
    story = Story()
    story.publish()
    story.update(checkpoint="/bad")
    story.rollback()
    story.update(checkpoint="/v3")
    story.rollback()
    assert story.spec.checkpoint == "/v1"


def test_a_rollback_to_the_current_version_changes_nothing():
    story = Story()
    story.publish()
    assert story.rollback(uuid(1)) is None


def test_an_unknown_version_is_refused_with_those_that_are_known():
    story = Story()
    story.publish()
    with pytest.raises(NotFound, match=rf"{uuid(1)} \(current\)") as refusal:
        story.rollback("f" * 32)
    assert refusal.value.param == "version"
    with pytest.raises(ModelNotFound):
        rollback_record(EMPTY, M, "", at_s=0)


def test_an_update_that_returns_to_the_current_content_is_no_new_version():
    story = Story()
    story.publish()
    story.update(replicas=3)
    story.update(replicas=1)
    assert story.known == [uuid(1)]
    assert story.update() is None


def test_the_last_versions_are_kept_and_the_current_is_among_them():
    story = Story()
    story.publish()
    for number in range(2, KEPT + 2):
        story.update(checkpoint=f"/v{number}")
    assert len(story.known) == KEPT
    assert uuid(1) not in story.known
    oldest = story.known[-1]
    story.rollback(oldest)
    story.update(checkpoint="/new")
    assert oldest in story.known
    assert len(story.known) == KEPT


def test_a_name_published_again_has_no_versions_of_before():
    story = Story()
    story.publish()
    story.update(checkpoint="/v2")
    story.take(unpublish_record, M)
    assert M not in story.state.versions
    story.publish()
    assert len(story.known) == 1


def test_the_revision_is_the_number_of_the_record_that_last_changed_the_model():
    story = Story()
    story.publish()
    story.update(replicas=2)
    assert story.spec.revision == 2
    story.update(checkpoint="/v2", replicas=2)
    story.rollback()
    assert story.spec.revision == 4


def test_an_update_made_from_an_older_revision_is_refused_with_both_numbers():
    story = Story()
    story.publish()
    story.update(replicas=2)
    with pytest.raises(StaleRevision, match=r"at revision 2 now .* from revision 1") as refusal:
        story.update(replicas=3, revision=1)
    assert refusal.value.param == "revision"
    story.update(replicas=3, revision=2)
    assert story.spec.replicas == 3


def test_a_revision_that_is_no_number_of_a_record_is_refused():
    story = Story()
    story.publish()
    with pytest.raises(InvalidRequest) as refusal:
        story.update(replicas=3, revision=-1)
    assert refusal.value.param == "revision"


def test_a_publish_from_a_revision_is_refused():
    with pytest.raises(InvalidRequest) as refusal:
        Story().publish(revision=3)
    assert refusal.value.param == "revision"


def test_a_client_without_revisions_keeps_the_autoscaling_and_placement_it_knows_nothing_of():
    story = Story()
    wanted = {"autoscaling": Autoscaling(max_replicas=7), "placement": Placement(devices=4)}
    story.publish(**wanted)
    story.update(replicas=2)
    assert (story.spec.autoscaling, story.spec.placement) == tuple(wanted.values())
    story.update(replicas=2, revision=story.spec.revision)
    assert (story.spec.autoscaling, story.spec.placement) == (None, Placement())


def test_records_say_who_and_what():
    story = Story()
    published = story.take(publish_record, spec(), version=uuid(1), by="ann")
    updated = story.take(
        update_record,
        spec(checkpoint="/v2", replicas=3, overrides={"A": "1"}),
        version=uuid(2),
        by="bob",
    )
    back = story.take(rollback_record, M, "", by="cy")
    gone = story.take(unpublish_record, M, by="dee")
    assert [one.by for one in (published, updated, back, gone)] == ["ann", "bob", "cy", "dee"]
    assert published.note == "llama from /v1, 1 replica"
    assert updated.note == "replicas 1 -> 3; checkpoint /v1 -> /v2; A unset -> 1"
    assert back.note == (
        f"from version {uuid(2)} to {uuid(1)}: checkpoint /v2 -> /v1; A 1 -> unset"
    )
    assert gone.note == "was llama from /v1, 3 replicas"


OLD_SPEC = (
    b'{"model_id":"/sax/test/m","model_path":"llama","checkpoint":"/v1","replicas":1,'
    b'"overrides":{"A":"1"},"acls":{},"admin_acl":"","version":"' + uuid(1).encode() + b'"}'
)


def test_records_of_before_versions_and_names_stay_readable():
    publish = decode_record(b'{"type":"publish","spec":' + OLD_SPEC + b',"at_s":1.5}')
    update = decode_record(b'{"type":"update","spec":' + OLD_SPEC + b',"at_s":1.5}')
    unpublish = decode_record(b'{"type":"unpublish","model_id":"/sax/test/m","at_s":2.5}')
    assert isinstance(publish, Publish)
    assert isinstance(update, Update)
    assert isinstance(unpublish, Unpublish)
    assert (publish.by, publish.note, publish.spec.version) == ("", "", uuid(1))
    assert apply(EMPTY, publish, 7).models[M].revision == 7


def test_a_snapshot_of_before_versions_stays_readable_and_can_be_gone_on_from():
    state = decode_state(
        b'{"cell":"/sax/test","models":{"/sax/test/m":' + OLD_SPEC + b"}}",
    )
    assert [one.version for one in listed((), state.models[M])] == [uuid(1)]
    story = Story()
    story.state, story.sequence = state, 7
    story.update(checkpoint="/v2", replicas=1)
    story.rollback()
    assert (story.spec.version, story.spec.checkpoint) == (uuid(1), "/v1")


steps = st.lists(
    st.tuples(
        st.sampled_from(["publish", "update", "rollback", "unpublish"]),
        st.sampled_from(["/a", "/b", "/c"]),
        st.integers(0, 3),
    ),
    max_size=30,
)


@given(steps)
def test_a_version_never_names_two_contents_and_the_current_one_is_always_kept(history):
    story, meaning = Story(), {}
    for kind, checkpoint, number in history:
        if kind == "publish" and M not in story.state.models:
            story.publish(checkpoint=checkpoint, replicas=number)
        elif M not in story.state.models:
            continue
        elif kind == "update":
            story.update(checkpoint=checkpoint, replicas=number)
        elif kind == "rollback":
            story.rollback(story.known[number % len(story.known)])
        elif kind == "unpublish":
            story.take(unpublish_record, M)
        assert decode_state(encode_state(story.state)) == story.state
        if M in story.state.models:
            assert story.spec.version in story.known
            for one in (*story.state.versions[M], story.spec):
                content = meaning.setdefault(one.version, (one.checkpoint, one.overrides))
                assert content == (one.checkpoint, one.overrides)


def test_a_rollback_of_a_model_that_is_gone_changes_nothing():
    assert apply(EMPTY, Rollback(M, uuid(1), 0.0), 1).models == {}
