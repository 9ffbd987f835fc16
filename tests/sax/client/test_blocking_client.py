"""The blocking client: no event loop in sight, any number of threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from sax.client import AsyncClient, Client
from sax.client.blocking_client import LoopThread
from sax.errors import Cancelled, ModelExists, NotFound, QueueFull
from sax.types import (
    Autoscaling,
    GenerateRequest,
    Message,
    ModelSpec,
    PublishedModel,
    SamplingParams,
)
from tests.each_case import each_case
from tests.sax.conftest import MODEL
from tests.sax.fake_admin import FakeAdmin
from tests.sax.fake_replica import FakeReplica

Result = TypeVar("Result")


class Cell:
    """A fake admin and replica on a loop of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.admin, self.replica = self.on_loop(self._start())

    async def _start(self) -> tuple[FakeAdmin, FakeReplica]:
        admin, replica = FakeAdmin(), FakeReplica()
        spec = ModelSpec(model_id=MODEL, model_path="counter", checkpoint="None", replicas=1)
        admin.models[MODEL] = PublishedModel(spec)
        await admin.start()
        admin.ready(MODEL, await replica.start())
        return admin, replica

    def on_loop(self, work: object) -> tuple[FakeAdmin, FakeReplica]:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()  # type: ignore[arg-type]

    def do(self, act: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(act)

    async def _stop(self) -> None:
        await self.admin.stop()
        await self.replica.stop()

    def close(self) -> None:
        self.on_loop(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def cell() -> Iterator[Cell]:
    cell = Cell()
    yield cell
    cell.close()


@pytest.fixture
def blocking(cell: Cell) -> Iterator[Client]:
    with Client(cell.admin.address) as client:
        yield client


def ask(tokens: int) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=tokens)
    return GenerateRequest(model_id=MODEL, prompt="go", sampling=sampling)


def test_operators_calls_wait_for_their_results(blocking: Client) -> None:
    blocking.publish("/sax/test/new", "llama", "None", overrides={"A": "1"})
    blocking.update("/sax/test/new", replicas=3)
    assert blocking.list("/sax/test/new").spec.replicas == 3
    assert len(blocking.list_all()) == 2
    assert blocking.servers() == []
    assert blocking.stats().servers_by_model_path == {"llama": 1}
    with pytest.raises(ModelExists):
        blocking.publish("/sax/test/new", "llama", "None")
    blocking.unpublish("/sax/test/new")
    blocking.wait_for_ready(MODEL, timeout_s=60)


def test_an_answer_is_an_ordinary_iterator(blocking: Client) -> None:
    assert [chunk.text for chunk in blocking.generate(ask(3))] == ["0", "1", "2"]


def test_text_calls_wait_for_their_results(blocking: Client) -> None:
    assert blocking.tokenize(MODEL, (Message("user", "a"),)) == ((97,), 2048)
    assert blocking.tokenize_texts(MODEL, "a").token_texts == ("a",)
    assert blocking.detokenize(MODEL, (97, 98)) == "ab"
    assert blocking.score(MODEL, "a", ["bc"]) == [-2.0]
    assert blocking.saxml_generate(MODEL, "abc") == [("cba", -1.5)]
    assert len(list(blocking.saxml_generate_stream(MODEL, "abc"))) == 3


def test_an_error_is_raised_where_the_iterator_is_read(cell: Cell, blocking: Client) -> None:
    cell.replica.fail = [QueueFull("full") for _ in range(4)]
    chunks = blocking.generate(ask(3))
    with pytest.raises(QueueFull, match="full"):
        next(chunks)


def test_closing_the_iterator_cancels_the_answer(cell: Cell, blocking: Client) -> None:
    chunks = blocking.generate(ask(100_000))
    assert next(chunks).text == "0"
    chunks.close()  # type: ignore[attr-defined]
    while not cell.replica.cancelled:
        threading.Event().wait(0.005)


@pytest.mark.extended
def test_many_threads_share_one_client(blocking: Client) -> None:
    def answer(tokens: int) -> str:
        return " ".join(chunk.text for chunk in blocking.generate(ask(tokens)))

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(answer, range(1, 65)))
    assert answers == [" ".join(map(str, range(tokens))) for tokens in range(1, 65)]


def test_watching_is_an_ordinary_iterator(cell: Cell, blocking: Client) -> None:
    events = blocking.watch(MODEL)
    assert [str(next(events)) for _ in range(2)] == ["Reset", f"+ {cell.replica.address}"]
    cell.do(lambda: cell.admin.ready(MODEL, "b:2"))
    assert [str(next(events)) for _ in range(2)] == ["Reset", "+ b:2"]


def test_closing_the_client_ends_what_other_threads_wait_for(cell: Cell) -> None:
    cell.do(cell.replica.hold.clear)
    client = Client(cell.admin.address)
    chunks = client.generate(ask(9))
    next(chunks)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, chunks)
        client.close()
        with pytest.raises(Cancelled):
            reading.result()


def test_a_closed_client_says_so(cell: Cell) -> None:
    client = Client(cell.admin.address)
    client.close()
    client.close()
    with pytest.raises(Cancelled, match="closed"):
        client.list(MODEL)
    with pytest.raises(Cancelled, match="closed"):
        next(client.generate(ask(1)))


def test_embed_and_custom_wait_for_their_results(blocking: Client) -> None:
    assert blocking.embed(MODEL, ["ab"]) == [[2.0, 0.5]]
    assert blocking.custom(MODEL, b"ab", "m") == b"m:ba"
    assert blocking.saxml_embed(MODEL, "abc") == [3.0, 0.5]


def test_autoscaling_is_published_and_ended(blocking: Client) -> None:
    bounds = Autoscaling(min_replicas=0, max_replicas=2)
    blocking.publish("/sax/test/scaled", "llama", "None", autoscaling=bounds)
    assert blocking.list("/sax/test/scaled").spec.autoscaling == bounds
    blocking.update("/sax/test/scaled", autoscaling="off")
    assert blocking.list("/sax/test/scaled").spec.autoscaling is None


def test_a_sink_gets_the_chunks_before_the_call_returns(blocking: Client) -> None:
    texts: list[str] = []
    blocking.generate_to(ask(3), lambda chunk: texts.append(chunk.text))
    assert texts == ["0", "1", "2"]


def test_embeddings_are_counted(blocking: Client) -> None:
    embedded = blocking.embed_counted(MODEL, ["ab"])
    assert (embedded.vectors, embedded.prompt_tokens) == ([[2.0, 0.5]], 2)


def public_calls(client: type) -> dict[str, Callable[..., object]]:
    members = inspect.getmembers(client, callable)
    return {name: member for name, member in members if not name.startswith("_")}


def test_every_call_of_the_async_client_is_one_of_the_blocking_client() -> None:
    assert public_calls(Client).keys() == public_calls(AsyncClient).keys()


@each_case("name", sorted(public_calls(AsyncClient)))
def test_both_clients_take_the_same_arguments_and_say_the_same(name: str) -> None:
    blocking, asynchronous = getattr(Client, name), getattr(AsyncClient, name)
    ours, theirs = (inspect.signature(call).parameters for call in (blocking, asynchronous))
    assert list(map(str, ours.values())) == list(map(str, theirs.values()))
    if name != "close":
        assert blocking.__doc__ == asynchronous.__doc__
        assert not inspect.iscoroutinefunction(blocking)


def test_both_clients_are_made_alike() -> None:
    assert inspect.signature(Client) == inspect.signature(AsyncClient)


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def count(to: int, closed: threading.Event) -> AsyncGenerator[int, None]:
    try:
        for number in range(to):
            yield number
        raise NotFound("no more")
    finally:
        closed.set()


def test_a_coroutine_runs_on_the_other_thread_and_its_result_comes_back() -> None:
    thread = LoopThread("sax-test")
    assert thread.run(double(21)) == 42
    thread.close()


def test_items_and_the_error_after_them_come_back() -> None:
    thread, closed, seen = LoopThread("sax-test"), threading.Event(), list[int]()
    items = thread.iterate(count(3, closed))
    seen += [next(items), next(items), next(items)]
    with pytest.raises(NotFound):
        next(items)
    assert seen == [0, 1, 2]
    assert closed.is_set()
    thread.close()


def test_an_iterator_left_early_closes_its_source() -> None:
    async def forever(closed: threading.Event) -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    thread, closed = LoopThread("sax-test"), threading.Event()
    for item in thread.iterate(forever(closed)):
        assert item == 1
        break
    assert closed.wait(60)
    thread.close()


def test_closing_cancels_what_runs_and_ends_the_thread() -> None:
    thread = LoopThread("sax-test")
    started = threading.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    failures: list[BaseException] = []

    def caller() -> None:
        try:
            thread.run(wait())
        except Cancelled as error:
            failures.append(error)

    waiting = threading.Thread(target=caller)
    waiting.start()
    started.wait()
    thread.close()
    thread.close()
    waiting.join()
    assert len(failures) == 1
    assert "sax-test" not in [each.name for each in threading.enumerate()]
    with pytest.raises(Cancelled):
        thread.run(double(1))
