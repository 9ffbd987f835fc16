"""Keeps the usable replicas of one model up to date in a background task."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from sax.auth.credentials import own_account, told_to_user
from sax.client.watch import Watched, WatchSource, follow
from sax.errors import Cancelled, Internal, SaxError, fresh

logger = logging.getLogger(__name__)


class Follower:
    """Follows one model until closed, or until the model is gone."""

    def __init__(self, source: WatchSource, model_id: str) -> None:
        self.watched = Watched()
        self._doubted: set[str] = set()
        self._error: SaxError | None = None
        self._news = asyncio.Event()
        self._asked_at = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(
            self._follow(source, model_id), name=f"follow {model_id}", context=own_account()
        )

    @property
    def idle_s(self) -> float:
        """Seconds since `usable` was last called."""
        return asyncio.get_running_loop().time() - self._asked_at

    @property
    def ended(self) -> bool:
        """True once following stopped: the model was unpublished, or the admin never answered."""
        return self._error is not None

    @property
    def addresses(self) -> frozenset[str]:
        return self.watched.ready or self.watched.former - self._doubted

    def doubt(self, address: str) -> None:
        """Drop a lost replica that only a previous admin reported ready."""
        if address not in self.watched.ready:
            self._doubted.add(address)

    async def usable(self, wait_s: float) -> frozenset[str]:
        """Return the usable addresses, waiting up to wait_s for a first one.

        Raises NotFound if the model is not published, AdminUnavailable if the first call to the
        admin failed.
        """
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        while self._error is None and not self.addresses:
            left_s = self._asked_at + wait_s - loop.time()
            news = self._news
            try:
                await asyncio.wait_for(news.wait(), left_s)
            except TimeoutError:
                break
        if self._error is not None:
            raise told_to_user(fresh(self._error))
        return self.addresses

    async def close(self) -> None:
        """Stop following; waiting callers get no replica."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, source: WatchSource, model_id: str) -> None:
        error: SaxError = Cancelled("the client was closed")
        try:
            async with aclosing(follow(source, model_id)) as answers:
                async for self.watched, _ in answers:
                    self._doubted &= self.watched.former
                    self._tell()
        except SaxError as exc:
            error = exc
        except Exception:
            logger.exception("following %s failed", model_id)
            error = Internal(f"following {model_id} failed; the client's log has the details")
        finally:
            self._error = error
            self._tell()

    def _tell(self) -> None:
        """Wake all waiters; later ones wait for the next change."""
        news, self._news = self._news, asyncio.Event()
        news.set()
