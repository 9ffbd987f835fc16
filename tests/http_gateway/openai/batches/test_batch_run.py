"""The log of a batch: whoever writes, and whatever is lost on the way, a line counts once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.openai.batches.batch_run import BatchProgress
from http_gateway.openai.batches.kept_batches import KeptBatches, LogMoved
from http_gateway.openai.batches.records import LineResult, LogEntry
from sax.storage.object_store import StoreUnavailable, open_store
from tests.stores.faulty_store import FaultyStore

PLACE = ("everyone", "batch_1")
LINES = 12


def result(line: int) -> LineResult:
    return LineResult(line, line % 3 != 0, f"{line}")


async def whole(kept: KeptBatches) -> list[LogEntry]:
    return [entry async for entry in kept.log(PLACE)]


class Writer:
    """A gateway that believes to run the batch; it reads the log again when that has moved."""

    def __init__(self, name: str, store: FaultyStore) -> None:
        self.name = name
        self.kept = KeptBatches(store)
        self.progress: BatchProgress | None = None

    async def step(self, *, flush: bool) -> None:
        """Answer the first line without an answer, and perhaps write what is held."""
        try:
            if self.progress is None:
                progress = BatchProgress(self.kept, PLACE, self.name)
                await progress.read()
                self.progress, self.taken = progress, {*progress.answered}
            left = [line for line in range(LINES) if line not in self.taken]
            if left and self.progress.ending is None:
                self.taken.add(left[0])
                await self.progress.add(result(left[0]))
            if flush:
                await self.progress.flush()
            if not left and self.progress.ending is None:
                await self.progress.end("completed", 7)
        except LogMoved:
            self.progress = None
        except StoreUnavailable:
            pass  # tried again with the next step


@pytest.mark.extended
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 1), st.booleans(), st.sampled_from(["", "", "before", "after"])),
        max_size=60,
    )
)
def test_every_line_counts_once_however_two_writers_take_turns(
    steps: list[tuple[int, bool, str]],
):
    async def story() -> list[LogEntry]:
        shared = open_store("memory://")
        stores = [FaultyStore(shared), FaultyStore(shared)]
        writers = [Writer(f"writer {n}", store) for n, store in enumerate(stores)]
        for which, flush, fault in steps:
            stores[which].fails = fault  # type: ignore[assignment]
            await writers[which].step(flush=flush)
        for store in stores:
            store.fails = ""
        for _ in range(3 * LINES):
            for writer in writers:
                await writer.step(flush=True)
        return await whole(writers[0].kept)

    log = asyncio.run(story())
    told = [each for entry in log for each in entry.results]
    assert sorted(each.line for each in told) == [*range(LINES)]
    assert [entry.ending for entry in log] == [*[""] * (len(log) - 1), "completed"]


async def test_an_entry_may_be_appended_again_by_its_writer_only():
    kept = KeptBatches(open_store("memory://"))
    entry = LogEntry(writer="a", results=[result(1)])
    await kept.append(PLACE, 0, entry)
    await kept.append(PLACE, 0, entry)
    with pytest.raises(LogMoved):
        await kept.append(PLACE, 0, LogEntry(writer="b", results=[result(1)]))
    assert await whole(kept) == [entry]


async def test_counts_are_of_what_is_on_the_store():
    store = FaultyStore()
    progress = BatchProgress(KeptBatches(store), PLACE, "a")
    await progress.add(result(1))
    assert progress.completed == 0
    store.fails = "after"
    with pytest.raises(StoreUnavailable):
        await progress.flush()
    assert progress.completed == 0
    store.fails = ""
    await progress.flush()
    assert (progress.completed, progress.failed, progress.answered) == (1, 0, {1})


async def test_many_results_are_written_without_being_asked():
    kept = KeptBatches(open_store("memory://"))
    progress = BatchProgress(kept, PLACE, "a")
    for line in range(130):
        await progress.add(result(line))
    assert len(progress.answered) == 128
    assert len(await whole(kept)) == 2
