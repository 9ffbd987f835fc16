"""Limits of keys: token buckets, allowances, headers, and what the routes of a gateway refuse."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.limits import Allowance, Limiter, TokenBucket, duration, limit_headers
from sax.auth.authentication import Authentication
from sax.auth.key_limits import KeyLimits
from sax.auth.token_file import TokenFile
from sax.errors import ReplicaLost
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published
from tests.identities import Identities

STEPS = st.lists(st.floats(0, 120), max_size=200)


@given(rate=st.integers(1, 1000), steps=STEPS)
def test_within_any_time_it_gives_at_most_its_rate_and_one_bucketful(
    rate: int, steps: list[float]
) -> None:
    bucket, given_at = TokenBucket.full(rate, 0.0), list[float]()
    for now_s in accumulate(steps):
        bucket = bucket.at(now_s)
        while bucket.level >= 1 and len(given_at) < 3000:
            bucket = bucket.less(1)
            given_at.append(now_s)
    for first in range(0, len(given_at), 7):
        for last in range(first, len(given_at), 11):
            seconds = given_at[last] - given_at[first]
            assert last - first + 1 <= rate * seconds / 60 + rate + 1e-6


@given(rate=st.integers(1, 10**9), used=st.floats(0, 1e12), later_s=st.floats(0, 1e6))
def test_its_level_never_exceeds_it_and_what_was_used_is_paid_back_by_time_alone(
    rate: int, used: float, later_s: float
) -> None:
    bucket = TokenBucket.full(rate, 0.0).less(used)
    later = bucket.at(later_s)
    assert later.level <= rate
    expected = min(rate, rate - used + later_s * rate / 60)
    assert math.isclose(later.level, expected, rel_tol=1e-9, abs_tol=1e-3)
    full = bucket.at(bucket.full_in_s)
    assert math.isclose(full.level, rate, rel_tol=1e-9, abs_tol=1e-3)


@given(back_s=st.floats(0, 1e6))
def test_a_clock_that_goes_back_adds_nothing(back_s: float) -> None:
    bucket = TokenBucket.full(60, 1e6).less(30)
    assert bucket.at(1e6 - back_s).level == 30


@given(old=st.integers(1, 1000), new=st.integers(1, 1000), used=st.floats(0, 5000))
def test_another_rate_forgives_nothing_that_was_used(old: int, new: int, used: float) -> None:
    changed = TokenBucket.full(old, 0.0).less(used).resized(new)
    assert changed.per_minute == new
    assert changed.level <= new
    assert math.isclose(new - changed.level, used, abs_tol=1e-6)


def test_requests_come_back_one_by_one_over_the_minute() -> None:
    limits = KeyLimits(rpm=2)
    allowance = Allowance.fresh(limits, 0.0).begun().begun()
    refusal = allowance.refusal()
    assert refusal is not None
    assert (refusal.limit, refusal.most, refusal.retry_after_s) == ("rpm", 2, 30.0)
    assert allowance.at(limits, 29.0).refusal() is not None
    assert allowance.at(limits, 30.0).refusal() is None


def test_a_balance_of_tokens_may_become_negative_and_is_then_paid_back() -> None:
    limits = KeyLimits(tpm=60)
    allowance = Allowance.fresh(limits, 0.0).begun().ended(100, 0.0)
    refusal = allowance.refusal()
    assert refusal is not None
    assert (refusal.limit, refusal.retry_after_s) == ("tpm", 41.0)
    assert allowance.at(limits, 40.0).refusal() is not None
    assert allowance.at(limits, 41.0).refusal() is None


def test_tokens_are_charged_when_a_request_ends_so_others_begin_before_that() -> None:
    limits = KeyLimits(tpm=10)
    allowance = Allowance.fresh(limits, 0.0).begun()
    assert allowance.refusal() is None
    assert allowance.begun().ended(30, 0.0).ended(30, 0.0).tokens == Allowance.fresh(
        limits, 0.0
    ).tokens.less(60)  # pyright: ignore[reportOptionalMemberAccess]


def test_limits_that_change_while_requests_run_hold_from_then_on() -> None:
    old, new = KeyLimits(concurrent=1), KeyLimits(concurrent=2, rpm=10)
    allowance = Allowance.fresh(old, 0.0).begun()
    assert allowance.refusal() is not None
    allowance = allowance.at(new, 1.0)
    assert allowance.refusal() is None
    allowance = allowance.begun()
    assert allowance.at(KeyLimits(), 2.0).refusal() is None
    assert allowance.ended(0, 2.0).ended(0, 2.0).running == 0


class Key(RuleBasedStateMachine):
    """A key's requests in any order: the model beside it counts all that was admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = KeyLimits(rpm=7, tpm=50, concurrent=3)
        self.allowance = Allowance.fresh(self.limits, 0.0)
        self.now_s = 0.0
        self.admitted = 0
        self.running = 0
        self.charged = 0

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def ask(self) -> None:
        allowance = self.allowance.at(self.limits, self.now_s)
        if allowance.refusal() is None:
            # Paid for before: no request was admitted on a balance that was used up.
            assert self.charged < 50 + 50 * self.now_s / 60 + 1e-6
            self.allowance = allowance.begun()
            self.admitted += 1
            self.running += 1

    @precondition(lambda self: self.running)
    @rule(tokens=st.integers(0, 40))
    def end(self, tokens: int) -> None:
        self.allowance = self.allowance.ended(tokens, self.now_s)
        self.running -= 1
        self.charged += tokens

    @invariant()
    def never_more_than_the_limits(self) -> None:
        assert self.allowance.running == self.running <= 3
        assert self.admitted <= 7 + 7 * self.now_s / 60 + 1e-6


TestKey = Key.TestCase


@given(st.integers(1, 5), st.integers(0, 20))
def test_whatever_ran_gives_its_place_back(concurrent: int, asked: int) -> None:
    limits = KeyLimits(concurrent=concurrent)
    allowance = Allowance.fresh(limits, 0.0)
    admitted = 0
    for _ in range(asked):
        if allowance.refusal() is None:
            allowance, admitted = allowance.begun(), admitted + 1
    assert admitted == min(asked, concurrent)
    for _ in range(admitted):
        allowance = allowance.ended(5, 1.0)
    assert allowance == Allowance.fresh(limits, 1.0)


def test_headers_tell_the_limits_that_there_are_and_what_is_left() -> None:
    allowance = Allowance.fresh(KeyLimits(rpm=60, tpm=600), 0.0).begun().ended(700, 0.0)
    assert limit_headers(allowance) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"600"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"1m10s"),
    ]
    assert limit_headers(Allowance.fresh(KeyLimits(concurrent=1), 0.0)) == []


@each_case(
    "seconds, text",
    [(0, "0ms"), (0.0201, "21ms"), (1, "1s"), (1.5, "1.5s"), (360, "6m0s"), (3723, "1h2m3s")],
)
def test_a_time_is_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK: dict[str, object] = {"model": "llama", "prompt": "abc"}  # three tokens, and five of the answer
Limited = Callable[..., httpx.AsyncClient]


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was used comes back while a test looks: at 1,000 a minute a token took 60 ms."""
    monkeypatch.setattr(Limiter.__init__, "__defaults__", (lambda: 1000.0,))


@pytest.fixture
def cell() -> FakeCell:
    return FakeCell(
        published("/sax/prod/llama"), published("/sax/prod/gemma"), published("/sax/test/smollm2")
    )


@pytest.fixture
def people(tmp_path: Path) -> Identities:
    return Identities(tmp_path, "alice", "bob")


@pytest.fixture
async def limited(cell: FakeCell, people: Identities) -> AsyncIterator[Limited]:
    """Opens clients of a gateway where alice has these limits, with her key."""
    opened: list[httpx.AsyncClient] = []

    def open_client(generation: int = 2, **limits: Any) -> httpx.AsyncClient:
        people.limits["alice"] = KeyLimits(**limits)
        people.write()
        config = GatewayConfig(saxml_generation=generation)
        app = create_app(cell, config, Authentication(TokenFile(people.path)))
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://gateway",
            headers=people.headers("alice"),
        )
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        await client.aclose()


def left(answer: httpx.Response, of: str) -> int:
    return int(answer.headers[f"x-ratelimit-remaining-{of}"])


async def test_a_key_over_its_rate_is_told_when_to_come_back(limited: Limited) -> None:
    http = limited(rpm=2)
    told = [await http.post(COMPLETIONS, json=ASK) for _ in range(3)]
    assert [each.status_code for each in told] == [200, 200, 429]
    assert [left(each, "requests") for each in told] == [1, 0, 0]
    refused = told[-1]
    assert 25 <= int(refused.headers["retry-after"]) <= 30
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    assert "x-ratelimit-limit-tokens" not in refused.headers
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "alice is limited to 2 requests a minute" in error["message"]
    text = (await http.get("/metrics")).text
    assert 'sax_gateway_limited_requests_total{limit="rpm"} 1.0' in text


async def test_a_saxml_route_refuses_in_its_own_words(limited: Limited) -> None:
    http = limited(rpm=1)
    query = {"model": "/sax/prod/llama", "query": "abc"}
    assert (await http.post("/generate", json=query)).status_code == 200
    refused = await http.post("/generate", json=query)
    assert (refused.status_code, list(refused.json())) == (429, ["detail"])
    old = limited(generation=1, rpm=1)
    assert (await old.post("/generate", json=query)).status_code == 200
    refused = await old.post("/generate", json=query)  # generation 1 knows no other status
    assert (refused.status_code, list(refused.json())) == (400, ["Error"])
    assert refused.headers["retry-after"]


SPENDS: list[tuple[str, dict[str, object], int]] = [
    (COMPLETIONS, ASK, 8),
    (COMPLETIONS, {**ASK, "stream": True}, 8),
    (COMPLETIONS, {**ASK, "n": 2}, 13),
    (CHATS, {"model": "llama", "messages": [{"role": "user", "content": "abc"}]}, 8),
    ("/v1/embeddings", {"model": "llama", "input": ["ab", "c"]}, 3),
    ("/v1/classify", {"model": "llama", "input": "abcd"}, 4),
    ("/v1/score", {"model": "llama", "text_1": "ab", "text_2": "c"}, 3),
    ("/v1/rerank", {"model": "llama", "query": "ab", "documents": ["c"]}, 3),
    ("/generate", {"model": "/sax/prod/llama", "query": "abc"}, 8),
]


@pytest.mark.parametrize(("path", "body", "tokens"), SPENDS)
async def test_every_route_that_reaches_a_model_charges_prompt_and_answer(
    limited: Limited, path: str, body: dict[str, object], tokens: int
) -> None:
    http = limited(tpm=1000)
    assert (await http.post(path, json=body)).status_code == 200
    assert 1000 - left(await http.get("/v1/models"), "tokens") == tokens


async def test_a_balance_below_zero_refuses_until_it_is_paid_back(limited: Limited) -> None:
    http = limited(tpm=2)
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 200
    refused = await http.post(COMPLETIONS, json=ASK)
    assert refused.status_code == 429
    assert left(refused, "tokens") == 0
    assert 200 <= int(refused.headers["retry-after"]) <= 210  # seven tokens at two a minute
    assert "2 tokens a minute" in refused.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_broken_answer_is_charged_for_what_it_gave(
    limited: Limited, cell: FakeCell, stream: bool
) -> None:
    http = limited(tpm=1000)
    cell.failure, cell.fail_at = ReplicaLost("gone"), 2
    await http.post(COMPLETIONS, json={**ASK, "stream": stream})
    assert 1000 - left(await http.get("/v1/models"), "tokens") == 5


@pytest.mark.parametrize("stream", [True, False])
async def test_requests_at_once_are_limited_and_give_their_places_back(
    limited: Limited, cell: FakeCell, stream: bool
) -> None:
    http = limited(concurrent=2)
    cell.hold_after = 1
    body = {**ASK, "stream": stream}
    running = [asyncio.create_task(http.post(COMPLETIONS, json=body)) for _ in range(2)]
    for _ in running:
        await cell.opened.get()
    refused = await http.post(COMPLETIONS, json=body)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "2 requests at once" in refused.json()["error"]["message"]
    running[0].cancel()
    await asyncio.gather(running[0], return_exceptions=True)
    cell.released.set()
    assert (await running[1]).status_code == 200
    for _ in range(3):
        assert (await http.post(COMPLETIONS, json=body)).status_code == 200


async def ask_and_leave(app: Any, cell: FakeCell, key: str, body: dict[str, object]) -> list[int]:
    """Ask, leave after the second token, and return the statuses of what was sent."""
    head = {"type": "http", "method": "POST", "path": COMPLETIONS, "http_version": "1.1"}
    rest = {"raw_path": b"", "query_string": b"", "scheme": "http", "root_path": ""}
    messages = [{"type": "http.request", "body": json.dumps(body).encode()}]
    statuses: list[int] = []

    async def receive() -> dict[str, object]:
        if messages:
            return messages.pop()
        await cell.opened.get()
        for _ in range(20):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    await app({**head, **rest, "headers": [(b"x-api-key", key.encode())]}, receive, send)
    return statuses


@pytest.mark.parametrize(("stream", "status"), [(True, 200), (False, 499)])
async def test_clients_that_leave_are_charged_and_give_their_places_back(
    cell: FakeCell, people: Identities, stream: bool, status: int
) -> None:
    people.limits["alice"] = KeyLimits(concurrent=1, tpm=100)
    people.write()
    app = create_app(cell, GatewayConfig(), Authentication(TokenFile(people.path)))
    cell.hold_after = 2
    for _ in range(5):
        told = await ask_and_leave(app, cell, people.tokens["alice"], {**ASK, "stream": stream})
        assert told == [status]
    cell.hold_after = None
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        headers = people.headers("alice")
        assert (await http.post(COMPLETIONS, json=ASK, headers=headers)).status_code == 200
        spent = 100 - left(await http.get("/v1/models", headers=headers), "tokens")
    assert 8 < spent <= 8 + 5 * (3 + 2)


async def test_a_request_that_fails_gives_its_place_back(limited: Limited, cell: FakeCell) -> None:
    http = limited(concurrent=1)
    for body in (b"{", b'{"model": "zzz", "prompt": "x"}', b'{"model": "llama", "prompt": 5}'):
        assert (await http.post(COMPLETIONS, content=body)).status_code in (400, 404)
    cell.failure = ReplicaLost("gone")
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 503
    cell.failure, cell.models = None, None  # pyright: ignore[reportAttributeAccessIssue]
    assert (await http.post("/v1/completions", json={**ASK, "model": "x"})).status_code == 500
    cell.models = {"m": published("/sax/prod/llama")}
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 200


async def test_reading_is_not_counted_and_tells_the_limits(limited: Limited) -> None:
    http = limited(rpm=1, tpm=5)
    for _ in range(3):
        for path in ("/v1/models", "/metrics", "/no/such/route", "/healthz"):
            assert left(await http.get(path), "requests") == 1
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 200


async def test_another_key_and_a_key_without_limits_are_not_affected(
    limited: Limited, people: Identities
) -> None:
    http = limited(rpm=1)
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 200
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 429
    for _ in range(3):
        bobs = await http.post(COMPLETIONS, json=ASK, headers=people.headers("bob"))
        assert bobs.status_code == 200
        assert not any(name.startswith("x-ratelimit") for name in bobs.headers)


async def test_limits_that_change_in_the_file_hold_at_the_next_request(
    limited: Limited, people: Identities
) -> None:
    http = limited(rpm=1)
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 200
    people.limits["alice"] = KeyLimits(rpm=1000, tpm=20)
    people.write()
    more = await http.post(COMPLETIONS, json=ASK)
    assert (more.status_code, left(more, "requests")) == (200, 998)


FORBIDDEN: list[tuple[str, str, dict[str, object]]] = [
    ("POST", COMPLETIONS, {"model": "smollm2", "prompt": "x"}),
    ("POST", COMPLETIONS, {"model": "/sax/test/smollm2", "prompt": "x", "stream": True}),
    ("POST", CHATS, {"model": "smollm2", "messages": [{"role": "user", "content": "x"}]}),
    ("POST", "/v1/embeddings", {"model": "smollm2", "input": "x"}),
    ("POST", "/v1/rerank", {"model": "smollm2", "query": "x", "documents": ["y"]}),
    ("POST", "/v1/score", {"model": "smollm2", "text_1": "x", "text_2": "y"}),
    ("POST", "/v1/classify", {"model": "smollm2", "input": "x"}),
    ("POST", "/generate", {"model": "/sax/test/smollm2", "query": "x"}),
    ("GET", "/v1/models/smollm2", {}),
    ("GET", "/v1/models//sax/test/smollm2", {}),
    ("POST", "/listcell", {"model": "/sax/test/smollm2"}),
    ("POST", "/unpublish", {"model": "/sax/test/smollm2"}),
    ("POST", "/rollback", {"model": "/sax/test/smollm2"}),
    ("POST", "/weights", {"model": "/sax/test/smollm2"}),
    ("POST", "/canary", {"model": "/sax/test/smollm2", "percent": 10}),
    ("POST", "/promote", {"model": "/sax/test/smollm2"}),
    ("POST", "/abort", {"model": "/sax/test/smollm2"}),
    (
        "PUT",
        "/update",
        {"model": "/sax/test/smollm2", "model_path": "p", "checkpoint": "c", "replicas": 1},
    ),
    (
        "POST",
        "/publish",
        {"model": "/sax/test/x", "model_path": "p", "checkpoint": "c", "replicas": 1},
    ),
]


@pytest.mark.extended
@pytest.mark.parametrize(("method", "path", "body"), FORBIDDEN)
async def test_a_model_that_a_key_may_not_use_is_forbidden_by_name(
    limited: Limited, cell: FakeCell, method: str, path: str, body: dict[str, object]
) -> None:
    http = limited(models=("/sax/prod/*",))
    refused = await http.request(method, path, json=body)
    assert refused.status_code == 403, refused.text
    assert "the key alice may not use /sax/test/" in refused.text
    assert "/sax/prod/*" in refused.text
    assert cell.opened.empty()
    assert "/sax/test/smollm2" in cell.models


async def test_lists_show_only_what_a_key_may_use(limited: Limited, people: Identities) -> None:
    http = limited(models=("llama", "smol*"))
    shown = {"/sax/prod/llama", "/sax/test/smollm2"}
    assert {each["id"] for each in (await http.get("/v1/models")).json()["data"]} == shown
    assert set((await http.post("/listall", json={"sax_cell": "/sax/prod"})).json()) == {
        "/sax/prod/llama"
    }
    assert set((await http.get("/readyz")).json()["models"]) == shown
    missing = await http.post(COMPLETIONS, json={"model": "gamma", "prompt": "x"})
    assert missing.status_code == 404
    assert "gemma" not in missing.text
    events = (await http.get("/events", params={"model": "/sax/prod/gemma"})).json()
    assert events == []
    everything = await http.get("/v1/models", headers=people.headers("bob"))
    assert len(everything.json()["data"]) == 3


async def test_a_short_name_means_the_model_that_the_key_may_use(
    limited: Limited, cell: FakeCell, people: Identities
) -> None:
    cell.models["/sax/test/llama"] = published("/sax/test/llama")
    http = limited(models=("/sax/prod/*",))
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 200
    assert [each.model_id for each in cell.requests] == ["/sax/prod/llama"]
    ambiguous = await http.post(COMPLETIONS, json=ASK, headers=people.headers("bob"))
    assert (ambiguous.status_code, "ambiguous" in ambiguous.text) == (400, True)


async def test_every_route_that_changes_or_computes_counts(limited: Limited) -> None:
    http = limited(rpm=1)
    told = (await http.get("/openapi.json")).json()["paths"]
    assert (await http.post(COMPLETIONS, json=ASK)).status_code == 200
    routes = [(method, path) for path in told for method in told[path] if method != "get"]
    assert ("post", CHATS) in routes
    for method, path in routes:
        assert (await http.request(method, path)).status_code == 429, path
