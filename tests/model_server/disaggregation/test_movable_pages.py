"""The real runner with real transfers: pages that leave and come back give the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from model_server.disaggregation.handed_pages import PageCount
from model_server.disaggregation.kv_transfers import KvTransfers, TransferServer
from model_server.disaggregation.layer_set import layer_sets
from model_server.disaggregation.movable_pages import MovablePages
from model_server.engine.running.ops import DropPages, ExportPages, FetchPages, ImportPages
from model_server.engine.running.runner import ModelRunner
from model_server.engine.types import PageGrant, Row, SlotSampling, Step
from model_server.loading.compile_watch import CompileWatch
from sax.errors import Unavailable
from tests.model_server.engine.running.test_runner import GREEDY, PROMPT, Tiny


class Moving:
    """A tiny model whose pages can move."""

    def __init__(self) -> None:
        self.tiny = Tiny()
        bare = self.tiny.runner
        sets = layer_sets(bare.program.pages)
        server, room = TransferServer("127.0.0.1"), PageCount(64)
        self.transfers = KvTransfers(server, sets, gives=True, takes=True, room=room)
        how = bare.program, bare.leaves, bare.pages, tuple(bare.layouts)
        self.runner = ModelRunner(*how, [MovablePages(self.transfers)])
        self.runner.compile(lambda _: None)


@pytest.fixture(scope="module")
def moving() -> Iterator[Moving]:
    made = Moving()
    yield made
    made.runner.close()
    assert made.runner.closed


def test_pages_that_left_and_came_back_go_on_where_they_were(moving: Moving) -> None:
    """Through the transfer server, into another slot and other pages; nothing is compiled."""
    watch = CompileWatch()
    transfers, runner = moving.transfers, moving.runner
    grants = (PageGrant(0, 0, (4, 11, 6)),)
    rows = (Row(1, 0, 0, PROMPT, True),)
    pending = runner.launch(Step(1, rows, grants, (SlotSampling(0, GREEDY),)))
    runner.do(ExportPages(77, (4, 11, 6), ()))
    first = pending.result()[0].rows[0].token
    assert first is not None
    fetching = runner.do(FetchPages(77, 3, 0, tuple(transfers.addresses()), 30.0))
    with pytest.raises(Unavailable):  # what is reserved is reserved at once
        runner.do(FetchPages(77, 3, 0, tuple(transfers.addresses()), 30.0))
    fetching.result()
    runner.do(ImportPages(77, (20, 2, 30), (), 3, first))
    runner.do(DropPages(77))
    assert transfers.offered == 0
    got, told = [first], ((PageGrant(3, 0, (20, 2, 30)),), (SlotSampling(3, GREEDY),))
    for at in range(3):
        row = Row(2, 3, len(PROMPT) + at, (), True)
        got.append(runner.launch(Step(2 + at, (row,), *told)).result()[0].rows[0].token)
        told = ((), ())
    watch.stop()
    assert got == moving.tiny.whole.greedy(PROMPT, 4)
    assert watch.while_serving == 0


def test_the_last_warm_up_runs_the_page_copies_and_changes_no_page(moving: Moving) -> None:
    runner = moving.runner
    assert runner.warmups == moving.tiny.runner.warmups + 1
    watch = CompileWatch()
    for index in range(runner.warmups):
        runner.warm(index)
    watch.stop()
    assert watch.while_serving == 0
    row, grant = Row(1, 0, 0, PROMPT, True), PageGrant(0, 0, (4, 11, 6))
    result = runner.launch(Step(1, (row,), (grant,), (SlotSampling(0, GREEDY),))).result()
    assert result[0].rows[0].token == moving.tiny.whole.greedy(PROMPT, 1)[0]
