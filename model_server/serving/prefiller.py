"""Computes prompts for other servers through the model's own engine and holds their pages.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from model_server.disaggregation.contract import Contract, check_same
from model_server.disaggregation.disaggregation import KEYS, Disaggregation
from model_server.disaggregation.handed_pages import PageAllowance, PageCount, handed_over
from model_server.disaggregation.handoff import KvHandoff
from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.engine.types import RowResult
from model_server.serving.lm_servable import LmServable
from model_server.serving.request_checks import check_device_sampling, check_ids
from model_server.serving.servables import Servables
from model_server.text.vocabulary_fit import check_rows
from sax.errors import InvalidRequest, QueueFull, UnsupportedParameter

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class Prefiller:
    """One per process."""

    def __init__(self, servables: Servables, *, expiry_s: float) -> None:
        self._servables = servables
        self._expiry_s = expiry_s
        self._open: dict[int, Callable[[], None]] = {}  # by key: frees the pages held

    async def compute(
        self, model_id: str, theirs: Contract, engine_request: EngineRequest, key: int
    ) -> KvHandoff:
        """Run a prompt and offer its pages under the key.

        Raises NotLoaded, UnsupportedParameter, QueueFull, ShuttingDown, PromptTooLong, and
        InvalidRequest that names every difference between the contracts.
        """
        servable, disaggregation = self._servable(model_id)
        check_same(disaggregation.contract, theirs)
        _check(engine_request, servable)
        self._check_new(key)
        outgoing = disaggregation.outgoing
        count = handed_over(disaggregation.runner.limits, len(engine_request.prompt))
        if not outgoing.take(count):
            raise QueueFull(
                f"{outgoing.used.pages} of {outgoing.room.pages} pages wait to be fetched here"
                f"{_told_window_pages(outgoing)}",
                retry_after_s=_RETRY_S,
            )
        self._open[key] = _nothing  # nothing to free yet
        try:
            first = await _first_token(servable, disaggregation, engine_request, key)
            addresses = tuple(disaggregation.transfers.addresses())
        except BaseException:
            del self._open[key]
            outgoing.give_back(count)
            raise
        self._hold(model_id, disaggregation, key, count)
        return KvHandoff(addresses, self._expiry_s, first)

    def release(self, key: int) -> None:
        """Free the pages under the key; an unknown key is no error."""
        if end := self._open.get(key):
            end()

    def _check_new(self, key: int) -> None:
        if not 0 < key < KEYS or key in self._open:
            raise InvalidRequest("key must be a new random number below 2**62", param="key")

    def _servable(self, model_id: str) -> tuple[LmServable, Disaggregation]:
        servable = self._servables.get(model_id)
        if isinstance(servable, LmServable):
            disaggregation = servable.loaded.disaggregation
            if disaggregation is not None and disaggregation.transfers.gives:
                return servable, disaggregation
        raise UnsupportedParameter(
            f"this server does not prefill {model_id} for others: that takes a language model on "
            "a server started with --prefill"
        )

    def _hold(
        self, model_id: str, disaggregation: Disaggregation, key: int, count: PageCount
    ) -> None:
        """Hold the pages until they are released or expire."""
        disaggregation.moved.offered += 1

        def end() -> None:
            timer.cancel()
            del self._open[key]
            disaggregation.transfers.drop(key)
            disaggregation.outgoing.give_back(count)

        def expire() -> None:
            end()
            disaggregation.moved.expired += 1
            logger.warning(
                "freed %d pages of %s that were not fetched within %.0f s",
                count.pages,
                model_id,
                self._expiry_s,
            )

        timer = asyncio.get_running_loop().call_later(self._expiry_s, expire)
        self._open[key] = end


def _nothing() -> None:
    pass


def _told_window_pages(outgoing: PageAllowance) -> str:
    used, room = outgoing.used.window_pages, outgoing.room.window_pages
    return f", and {used} of {room} of layers with a window or a state" if room else ""


def _check(engine_request: EngineRequest, servable: LmServable) -> None:
    """Validate again what the caller has validated: a bad row would affect others in its step."""
    tokenizer, sampling = servable.loaded.tokenizer, engine_request.sampling
    check_rows(engine_request.prompt, servable.loaded.vocab, tokenizer)
    check_ids("tokens", engine_request.prompt, tokenizer.vocab_size)
    check_device_sampling(sampling, servable.loaded.ids)


async def _first_token(
    servable: LmServable, disaggregation: Disaggregation, engine_request: EngineRequest, key: int
) -> RowResult:
    outcome: asyncio.Future[RowResult] = asyncio.get_running_loop().create_future()

    def receive(update: SequenceUpdate) -> None:
        if not outcome.done():
            if update.error is None:
                outcome.set_result(update.result)
            else:
                outcome.set_exception(update.error)

    runner = disaggregation.runner
    sequence = servable.submit(
        engine_request, receive, announce=lambda sequence: runner.expect_export(sequence, key)
    )
    try:
        return await outcome
    except BaseException:
        # Cancel first: if the pages are being exported now, the runner drops them itself.
        servable.cancel(sequence)
        disaggregation.transfers.drop(key)
        raise
