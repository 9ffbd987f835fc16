"""One host's runner whose pages can leave for other servers and come from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import jax

from model_server.disaggregation.handed_pages import PageNumbers
from model_server.disaggregation.layer_set import Block
from model_server.disaggregation.page_copies import PageCopies
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.media.encode_batch import EncodeBatch
from model_server.engine.runner import ModelRunner
from model_server.engine.types import EngineLimits, PendingStep, SlotMask, Step
from sax.types import Progress


class PageTraffic(Protocol):
    """Carries pages out of this host's runner and into it."""

    gives: bool
    takes: bool

    def addresses(self) -> Sequence[str]: ...

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


class KvRunner:
    """Wraps a `ModelRunner`; pages are copied between its steps, in the order of the calls."""

    def __init__(self, runner: ModelRunner, transfers: PageTraffic) -> None:
        self._runner = runner
        self.transfers = transfers
        self._copies = PageCopies(runner.program, gives=transfers.gives, takes=transfers.takes)

    @property
    def limits(self) -> EngineLimits:
        return self._runner.limits

    @property
    def closed(self) -> bool:
        return self._runner.closed

    @property
    def offer(self) -> str:
        """Address from which other replicas fetch this host's pages; "" if it offers none."""
        return self.transfers.addresses()[0] if self.transfers.gives else ""

    def compile(
        self, report: Callable[[Progress], None], programs: Programs = COMPILED_HERE
    ) -> None:
        self._runner.compile(report, programs)
        self._copies.compile(programs)

    @property
    def warmups(self) -> int:
        return self._runner.warmups + 1  # all page copies at once

    def warm(self, index: int) -> None:
        if index < self._runner.warmups:
            self._runner.warm(index)
        else:
            self._warm_copies()

    def _warm_copies(self) -> None:
        held = self._runner
        held.pages, last = self._copies.warm(held.pages, self._last_tokens)
        self._keep(last)

    def launch(self, step: Step) -> PendingStep:
        return self._runner.launch(step)

    def read_adapter(self, key: str, path: str) -> None:
        self._runner.read_adapter(key, path)

    def forget_adapter(self, key: str) -> None:
        self._runner.forget_adapter(key)

    def write_adapter(self, key: str, place: int) -> None:
        self._runner.write_adapter(key, place)

    def encode(self, batch: EncodeBatch) -> None:
        self._runner.encode(batch)

    def choose(self, masks: Sequence[SlotMask]) -> None:
        self._runner.choose(masks)

    def import_pages(
        self, key: int, pages: Sequence[int], near: Sequence[int], slot: int, token: int
    ) -> None:
        self._write(self.transfers.take(key), PageNumbers(pages, near))
        self._keep(self._copies.put_token(self._last_tokens, slot, token))

    @property
    def _last_tokens(self) -> jax.Array:
        assert self._runner.state is not None, "a pipeline stage hands nothing off"
        return self._runner.state.last_tokens

    def _keep(self, last_tokens: jax.Array) -> None:
        assert self._runner.state is not None
        self._runner.state = self._runner.state._replace(last_tokens=last_tokens)

    def export_pages(self, key: int, pages: Sequence[int], near: Sequence[int]) -> None:
        """Offer a copy of the pages under the key; later steps may overwrite the pages."""
        self.transfers.offer(key, self._read(PageNumbers(pages, near)))

    def _read(self, numbers: PageNumbers) -> list[Block]:
        return self._copies.read(self._runner.pages, numbers)

    def _write(self, blocks: Sequence[Block], numbers: PageNumbers) -> None:
        self._runner.pages = self._copies.write(self._runner.pages, blocks, numbers)

    def close(self) -> None:
        self._runner.close()
        self.transfers.close()
