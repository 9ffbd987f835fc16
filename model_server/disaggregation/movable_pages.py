"""Pages of one host's runner that leave for other servers and come from them, between its steps.

A draft model's pages travel with the model's own. The server that computes a prompt has computed
the draft model's part of it as well, in the same steps, so draft tokens after a handoff are as good
as after a prompt that was computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import jax

from model_server.disaggregation.handed_pages import PageCount, PageNumbers
from model_server.disaggregation.layer_set import Block
from model_server.disaggregation.page_copies import PageCopies
from model_server.engine.compiling import Programs
from model_server.engine.running.draft_model import DraftModel
from model_server.engine.running.ops import (
    DONE,
    DropPages,
    ExportPages,
    FetchPages,
    ImportPages,
    Later,
    Op,
    Pending,
)
from model_server.engine.running.runner import ModelRunner, Prepare, RunnerPart
from sax.errors import Unavailable
from sax.types import Progress


class PageTraffic(Protocol):
    """Carries pages out of this host's runner and into it."""

    gives: bool
    takes: bool

    def addresses(self) -> Sequence[str]: ...

    def reserve(self, key: int, count: PageCount) -> bool:
        """Reserve memory for pages to be fetched; False if there is too little."""
        ...

    def fetch(self, key: int, addresses: Sequence[str], deadline_s: float) -> None:
        """Fetch the pages that another server offers under a reserved key."""
        ...

    def offer(self, key: int, blocks: Sequence[Block]) -> None:
        """Keep blocks of pages under the key."""
        ...

    def take(self, key: int) -> Sequence[Block]:
        """Return the blocks that have arrived under the key."""
        ...

    def drop(self, key: int) -> None:
        """Free what is under the key, if anything is."""
        ...

    def close(self) -> None: ...


class MovablePages(RunnerPart):
    """Blocks in transit are the model's, and behind them as many of the draft model's, if any."""

    warmups = 1  # all page copies at once

    def __init__(self, transfers: PageTraffic, draft: DraftModel | None = None) -> None:
        """draft: another part of the runner."""
        self._transfers = transfers
        self._draft = draft

    @property
    def offer(self) -> str:
        """Address from which other replicas fetch this host's pages; "" if it offers none."""
        return self._transfers.addresses()[0] if self._transfers.gives else ""

    def join(self, runner: ModelRunner) -> Mapping[type[Op], Prepare]:
        gives, takes = self._transfers.gives, self._transfers.takes
        self._runner = runner
        self._copies = PageCopies(runner.program, gives=gives, takes=takes)
        self._pools: list[tuple[PageCopies, ModelRunner | DraftModel]] = [(self._copies, runner)]
        if self._draft is not None:
            copies = PageCopies(self._draft.program, gives=gives, takes=takes, draft=True)
            self._pools.append((copies, self._draft))
        return {
            ExportPages: lambda op: partial(self._export, op),
            ImportPages: lambda op: partial(self._import, op),
            FetchPages: lambda op: partial(self._fetch, op),
            DropPages: lambda op: partial(self._drop, op),
        }

    def compile(self, report: Callable[[Progress], None], programs: Programs) -> None:
        for copies, _ in self._pools:
            copies.compile(programs)

    def warm(self, index: int) -> None:
        for copies, pool in self._pools:
            pool.pages, last = copies.warm(pool.pages, self._last_tokens)
            self._keep(last)

    def close(self, *, shared: bool) -> None:
        self._transfers.close()

    def _export(self, op: ExportPages) -> Pending[None]:
        """Later steps may overwrite the pages: a copy is offered."""
        numbers = PageNumbers(op.pages, op.near)
        blocks = [
            block for copies, pool in self._pools for block in copies.read(pool.pages, numbers)
        ]
        self._transfers.offer(op.key, blocks)
        return DONE

    def _import(self, op: ImportPages) -> Pending[None]:
        blocks, numbers = self._transfers.take(op.key), PageNumbers(op.pages, op.near)
        size = len(blocks) // len(self._pools)
        for place, (copies, pool) in enumerate(self._pools):
            own = blocks[place * size : (place + 1) * size]
            pool.pages = copies.write(pool.pages, own, numbers)
        self._keep(self._copies.put_token(self._last_tokens, op.slot, op.token))
        return DONE

    def _fetch(self, op: FetchPages) -> Pending[None]:
        """Reserve in the order of ops; fetch when the result is asked for."""
        if not self._transfers.reserve(op.key, PageCount(op.pages, op.near)):
            raise Unavailable("no memory for the pages")
        return Later(partial(self._transfers.fetch, op.key, op.addresses, op.deadline_s))

    def _drop(self, op: DropPages) -> Pending[None]:
        self._transfers.drop(op.key)
        return DONE

    @property
    def _last_tokens(self) -> jax.Array:
        assert self._runner.state is not None, "a pipeline stage hands nothing off"
        return self._runner.state.last_tokens

    def _keep(self, last_tokens: jax.Array) -> None:
        assert self._runner.state is not None
        self._runner.state = self._runner.state._replace(last_tokens=last_tokens)
