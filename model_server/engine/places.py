"""Places in an engine's queue: how many requests may wait, in all and of one account."""

from __future__ import annotations

from collections import Counter
from typing import NoReturn

from model_server.engine.limits import EngineLimits
from model_server.engine.request import EngineRequest
from model_server.engine.scheduler import Scheduler
from sax.errors import QueueFull


class Places:
    """Counts requests that the scheduler does not have yet. Its engine's lock guards it."""

    def __init__(self, limits: EngineLimits, scheduler: Scheduler) -> None:
        self.arriving: Counter[str] = Counter()  # submitted, not scheduled yet, by account
        self.reserved: Counter[str] = Counter()  # places held for what is not submitted yet
        self._limits = limits
        self._scheduler = scheduler

    def check(self, request: EngineRequest, busy_s: float) -> None:
        """Bound live requests, not waiting ones: a burst into free slots is not a full queue.

        One account may fill the queue. Another may then still wait beside it with as many requests
        as an equal share of the places, so all together are bounded too. Answers begun elsewhere
        had a place there: they are taken beyond these bounds, as many as a replica of this size
        can lose, or new requests would keep them out until their readers give up.

        busy_s: that the engine has computed, for the time after which QueueFull says to retry.
        """
        limits, places = self._limits, self._limits.slots + self._limits.queue
        account = request.account
        live = len(self._scheduler.live) + self.arriving.total() + self.reserved.total()
        if request.answer and live < 2 * places:
            return
        mine = self._live_of(account)
        if limits.max_queued_per_account is not None:
            slots = min(limits.slots, limits.max_running_per_account or limits.slots)
            if mine >= slots + limits.max_queued_per_account:
                self._refuse(
                    f"{mine} requests of this account are running or waiting here, the "
                    "most that --max_queued_per_account allows",
                    busy_s,
                )
        if live >= places and mine >= places // self._accounts_with(account):
            self._refuse(f"this replica is full ({live} requests running or waiting)", busy_s)

    def _live_of(self, account: str) -> int:
        return (
            self._scheduler.accounts.live(account) + self.arriving[account] + self.reserved[account]
        )

    def _accounts_with(self, account: str) -> int:
        """Count the accounts with live requests, this one included: those that share the places.

        One that has arrived but is not scheduled yet may count twice, for a step.
        """
        others = {*self.arriving, *self.reserved, account}
        return len(self._scheduler.accounts) + sum(
            not self._scheduler.accounts.live(name) for name in others
        )

    def _refuse(self, why: str, busy_s: float) -> NoReturn:
        # Mean time so far until a place becomes free, in whole seconds from 1 to 60.
        mean_s = busy_s / max(self._scheduler.commits.finished, 1)
        retry_after_s = float(min(max(round(mean_s), 1), 60))
        raise QueueFull(f"{why}; retry in {retry_after_s:.0f} s", retry_after_s=retry_after_s)
