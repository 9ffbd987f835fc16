"""A draft model's pages travel with the model's: it drafts as well after a handoff."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from model_server.disaggregation.handed_pages import PageCount
from model_server.disaggregation.handoff_runner import HandoffRunner
from model_server.disaggregation.kv_transfers import KvTransfers, TransferServer
from model_server.disaggregation.layer_set import layer_sets
from model_server.disaggregation.movable_pages import MovablePages
from model_server.engine.drafting.drafting import Drafting
from model_server.engine.drafting.drafts import Drafts
from model_server.engine.request import EngineRequest
from model_server.engine.running.draft_model import DraftModel
from model_server.engine.running.runner import ModelRunner
from model_server.loading.compile_watch import CompileWatch
from tests.model_server.engine.drafting.driving import answers, tokens_of
from tests.model_server.engine.running.test_draft_model import (
    BUCKETS,
    MOST,
    SLOTS,
    TIMES,
    asked,
    built,
    plain,
    unlike,
)
from tests.model_server.tiny import PAGE

KEY = 77
PROMPT = tuple((5 * place + 2) % 97 for place in range(27))


class Moving:
    """A tiny model that is its own draft; what it offers, it may fetch."""

    def __init__(self) -> None:
        bare = built(3)
        (draft,) = bare.parts
        assert isinstance(draft, DraftModel)
        sets = (*layer_sets(bare.program.pages), *layer_sets(draft.program.pages))
        server, room = TransferServer("127.0.0.1"), PageCount(64)
        self.transfers = KvTransfers(server, sets, gives=True, takes=True, room=room)
        how = bare.program, bare.leaves, bare.pages, BUCKETS
        self.moved = ModelRunner(*how, [draft, MovablePages(self.transfers, draft)])
        self.moved.compile(lambda _: None)
        for index in range(self.moved.warmups):
            self.moved.warm(index)
        self.runner = HandoffRunner(self.moved, self.transfers)

    def hand_over(self, request: EngineRequest) -> int:
        """Compute the prompt, fetch its pages, and overwrite them here; return the first token."""
        self.runner.expect_export(1, KEY)
        ((first,),) = answers(self.runner, [replace(request, max_tokens=1)])
        assert first.token is not None
        pages = -(-len(request.prompt) // PAGE)
        assert self.transfers.reserve(KEY, PageCount(pages))
        self.transfers.fetch(KEY, self.transfers.addresses(), 30.0)
        answers(self.runner, [replace(request, prompt=request.prompt[::-1], max_tokens=12)])
        return first.token


@pytest.fixture(scope="module")
def moving() -> Iterator[Moving]:
    made = Moving()
    yield made
    made.runner.close()


@pytest.mark.nightly
def test_draft_tokens_after_a_handoff_are_right_and_nothing_is_compiled(moving: Moving) -> None:
    request = replace(asked(0, 24), prompt=PROMPT)
    watch = CompileWatch()
    first = moving.hand_over(request)
    moving.runner.expect_import(1, KEY, first)
    drafts = Drafts(moving.runner, PAGE)
    here = replace(request, answer=(first,), computed=True)
    (made,) = answers(moving.runner, [here], Drafting(MOST, SLOTS, TIMES, drafts))
    watch.stop()
    assert [first, *tokens_of(made)] == plain(moving.moved, [request])[0]
    assert drafts.proposed == drafts.accepted > 8
    assert watch.while_serving == 0


@pytest.mark.nightly
def test_every_position_of_the_draft_model_arrives(moving: Moving) -> None:
    """Both models are the same one, so their keys are equal wherever both were computed."""
    request = replace(asked(0, 4), prompt=PROMPT[5:])
    first = moving.hand_over(request)
    moving.runner.expect_import(1, KEY, first)
    answers(moving.runner, [replace(request, answer=(first,), computed=True)])
    assert unlike(moving.moved) == []
