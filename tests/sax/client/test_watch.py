"""The set of ready replicas, answer by answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.client.watch import Watched, apply, follow, pause_s
from sax.errors import AdminUnavailable, DeadlineExceeded, Internal, ModelNotFound, SaxError
from sax.proto import admin_pb2
from sax.types import CanaryShare

ADDRESSES = st.frozensets(st.sampled_from("abcdef"), max_size=6)


def answer(
    seqno: int = 1,
    full: Iterable[str] | None = None,
    changes: Iterable[str] = (),
    admin: str = "first",
) -> admin_pb2.WatchLocResponse:
    """`changes` are "+a" and "-a"."""
    mutation = admin_pb2.WatchResult.Mutation
    log = [
        mutation(addition=change[1:]) if change[0] == "+" else mutation(deletion=change[1:])
        for change in changes
    ]
    result = admin_pb2.WatchResult(
        next_seqno=seqno, has_fullset=full is not None, values=full or (), changelog=log
    )
    return admin_pb2.WatchLocResponse(admin_server_id=admin, result=result)


def after(*answers: admin_pb2.WatchLocResponse) -> tuple[Watched, list[str]]:
    """The set after the answers, and the last one's events as text."""
    watched, events = Watched(), ()
    for each in answers:
        watched, events = apply(watched, each)
    return watched, [str(event) for event in events]


def test_a_full_set_replaces_what_was_there() -> None:
    watched, events = after(answer(1, ["a", "b"]), answer(5, ["b", "c"]))
    assert watched.ready == {"b", "c"}
    assert watched.seqno == 5
    assert events == ["Reset", "+ b", "+ c"]


def test_the_division_of_requests_is_that_of_the_last_answer() -> None:
    share = admin_pb2.CanaryShare(uuid=bytes(16), percent=10, addresses=["b"])
    divided = answer(3, ["a", "b"])
    divided.canary.CopyFrom(share)
    watched, _ = after(divided)
    assert watched.canary == CanaryShare("0" * 32, 10, frozenset("b"))
    watched, _ = after(divided, answer(4, changes=["+b"]))
    assert watched.canary is None


def test_an_admin_that_was_restarted_does_not_end_the_division_before_it_knows() -> None:
    divided = answer(3, ["a", "b"])
    divided.canary.CopyFrom(admin_pb2.CanaryShare(uuid=bytes(16), percent=10, addresses=["b"]))
    watched, _ = after(divided, answer(1, [], admin="second"))
    assert (watched.usable, watched.canary) == ({"a", "b"}, after(divided)[0].canary)
    watched, _ = after(divided, answer(1, [], admin="second"), answer(2, ["a"], admin="second"))
    assert watched.canary is None


def test_a_changelog_is_applied_in_order() -> None:
    watched, events = after(answer(1, ["a"]), answer(4, changes=["+b", "-a", "-b", "+b"]))
    assert watched.ready == {"b"}
    assert events == ["+ b", "- a", "- b", "+ b"]


def test_a_first_changelog_without_a_full_set_starts_from_nothing() -> None:
    """Saxml's admin sends no full set while its log still starts at 0."""
    watched, events = after(answer(2, changes=["+a", "+b"]))
    assert watched.ready == {"a", "b"}
    assert events == ["Reset", "+ a", "+ b"]


def test_another_admins_changelog_forgets_what_the_first_admin_said() -> None:
    watched, _ = after(answer(1, ["a", "b"]), answer(1, changes=["+c"], admin="second"))
    assert watched.ready == {"c"}
    assert watched.usable == {"c"}


def test_replicas_stay_usable_while_a_restarted_admin_knows_of_none() -> None:
    first, empty = answer(1, ["a", "b"]), answer(1, [], admin="second")
    watched, _ = after(first, empty)
    assert watched.ready == frozenset()
    assert watched.usable == {"a", "b"}
    watched, _ = after(first, empty, answer(1, [], admin="third"))
    assert watched.usable == {"a", "b"}
    watched, _ = after(first, empty, answer(2, changes=["+b"], admin="second"))
    assert watched.usable == {"b"}
    assert watched.former == frozenset()


def test_an_admin_that_says_empty_after_ready_is_believed() -> None:
    watched, _ = after(answer(1, ["a"]), answer(2, changes=["-a"]))
    assert watched.usable == frozenset()


@given(st.lists(ADDRESSES, min_size=1, max_size=8), st.data())
def test_any_mix_of_full_sets_and_changelogs_ends_at_the_admins_set(
    sets: list[frozenset[str]], data: st.DataObject
) -> None:
    watched, seen = Watched(), frozenset[str]()
    for seqno, values in enumerate(sets, start=1):
        changes = [f"+{a}" for a in sorted(values - seen)]
        changes += [f"-{a}" for a in sorted(seen - values)]
        full = seqno == 1 or data.draw(st.booleans())
        reply = answer(seqno, values) if full else answer(seqno, changes=changes)
        watched, _ = apply(watched, reply)
        seen = values
        assert watched.ready == values
        assert watched.seqno == seqno


class Script:
    """A source that answers from a queue, and waits while it is empty."""

    def __init__(self, *answers: admin_pb2.WatchLocResponse | SaxError) -> None:
        self.answers: asyncio.Queue[admin_pb2.WatchLocResponse | SaxError] = asyncio.Queue()
        for each in answers:
            self.answers.put_nowait(each)
        self.asked: list[admin_pb2.WatchLocRequest] = []

    async def watch_loc(self, request: admin_pb2.WatchLocRequest) -> admin_pb2.WatchLocResponse:
        self.asked.append(request)
        reply = await self.answers.get()
        if isinstance(reply, SaxError):
            raise reply
        return reply


async def test_each_question_names_the_admin_and_the_number_of_the_answer_before() -> None:
    script = Script(answer(3, ["a"]), answer(4, changes=["-a"]), answer(1, ["b"], admin="second"))
    states = follow(script, "/sax/test/m")
    ready = [(await anext(states))[0].ready for _ in range(3)]
    assert ready == [{"a"}, frozenset(), {"b"}]
    asked = [(each.model_id, each.admin_server_id, each.seqno) for each in script.asked]
    assert asked == [
        ("/sax/test/m", "", 0),
        ("/sax/test/m", "first", 3),
        ("/sax/test/m", "first", 4),
    ]
    await states.aclose()


@pytest.mark.extended
@pytest.mark.parametrize("fault", [AdminUnavailable, DeadlineExceeded, Internal])
async def test_a_fault_after_the_first_answer_is_outlived(fault: type[SaxError]) -> None:
    states = follow(Script(answer(1, ["a"]), fault("x"), fault("x"), answer(2, ["b"])), "m")
    assert (await anext(states))[0].ready == {"a"}
    assert (await anext(states))[0].ready == {"b"}
    await states.aclose()


async def test_a_fault_of_the_first_question_is_raised() -> None:
    with pytest.raises(AdminUnavailable):
        await anext(follow(Script(AdminUnavailable("x")), "m"))


async def test_a_first_question_without_news_is_asked_again() -> None:
    """Saxml's admin does not answer while the set is empty."""
    states = follow(Script(DeadlineExceeded("x"), answer(1, ["a"])), "m")
    assert (await anext(states))[0].ready == {"a"}
    await states.aclose()


async def test_an_unpublished_model_ends_the_watch() -> None:
    states = follow(Script(answer(1, ["a"]), ModelNotFound("gone")), "m")
    await anext(states)
    with pytest.raises(ModelNotFound):
        await anext(states)


@given(st.integers(0, 10_000))
def test_a_pause_is_never_zero_and_never_long(failures: int) -> None:
    assert 0.05 <= pause_s(failures) <= 3.0
