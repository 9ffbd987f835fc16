"""What went wrong with servers and models, and when each thing is tried again.

Plain bookkeeping, told what happened and when. Knows nothing of RPCs, servers, specs or decisions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from admin_server.seen import AclPush, Failure, Place
from admin_server.state import CellState
from sax.need import Need

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0
# Of one model, the newest: a checkpoint that is broken fails on one server after the other.
_KEPT = 32


class Failures:
    """Loads that failed, by model and by address."""

    def __init__(self, jitter: random.Random) -> None:
        self._jitter = jitter
        self._by_model: dict[str, dict[str, Failure]] = {}
        self._needs: dict[str, tuple[str, Need]] = {}  # by model: of which version, what

    def all(self) -> Mapping[Place, Failure]:
        """All of them, by place."""
        return {
            (address, model_id): failure
            for model_id, failures in self._by_model.items()
            for address, failure in failures.items()
        }

    def needs(self) -> Mapping[str, tuple[str, Need]]:
        """By model, of which version it was learned what a server must have, and what."""
        return dict(self._needs)

    def fail(
        self, place: Place, version: str, reason: str, now: float, need: Need | None = None
    ) -> None:
        """Count a failure once, however often it is seen before the next try.

        With a need it is no fault of the model, and holds for every server as well as for this.
        """
        address, model_id = place
        if need is not None:
            known_of, known_need = self._needs.get(model_id, ("", None))
            self._needs[model_id] = (
                version,
                need.joined(known_need if known_of == version else None),
            )
        failures = self._by_model.setdefault(model_id, {})
        known = failures.pop(address, None)
        if known is not None and known.version == version and not known.retrying:
            failures[address] = known
            return
        # A server that lacks the room says nothing of how it will go on another one.
        others = [known] if need is not None else [known, *failures.values()]
        tries = [f.count for f in others if f is not None and f.version == version]
        count = 1 + max(tries, default=0)
        delay = backoff_s(count, self._jitter.uniform(0.8, 1.2))
        failures[address] = Failure(version, count, reason, now + delay, need=need)
        if len(failures) > _KEPT:
            del failures[next(iter(failures))]

    def retry(self, place: Place) -> None:
        """The next try begins."""
        address, model_id = place
        failures = self._by_model.get(model_id, {})
        if address in failures:
            failures[address] = replace(failures[address], retrying=True)

    def heal(self, place: Place) -> None:
        """It works."""
        address, model_id = place
        if model_id in self._by_model:
            self._by_model[model_id].pop(address, None)

    def forget(self, address: str) -> None:
        """Nothing known of the server holds any longer."""
        for failures in self._by_model.values():
            failures.pop(address, None)

    def keep_wanted(self, wanted: CellState) -> None:
        """Drop what is known of failed loads that nobody wants any more."""
        kept = {
            model_id: {
                address: failure
                for address, failure in failures.items()
                if failure.version in ("", wanted.models[model_id].version)
            }
            for model_id, failures in self._by_model.items()
            if model_id in wanted.models
        }
        self._by_model = {model_id: failures for model_id, failures in kept.items() if failures}
        self._needs = {
            model_id: (version, need)
            for model_id, (version, need) in self._needs.items()
            if model_id in wanted.models and wanted.models[model_id].version == version
        }


class AclPushes:
    """Access control lists that were sent to a server which does not report them yet."""

    def __init__(self, jitter: random.Random) -> None:
        self._jitter = jitter
        self._by_address: dict[str, dict[str, AclPush]] = {}

    def all(self) -> Mapping[Place, AclPush]:
        """All of them, by place."""
        return {
            (address, model_id): push
            for address, pushes in self._by_address.items()
            for model_id, push in pushes.items()
        }

    def sent(self, place: Place, acls: Mapping[str, str], error: str | None, now: float) -> None:
        """The server took them, or refused; either way, not again before a while has passed."""
        address, model_id = place
        pushes = self._by_address.setdefault(address, {})
        known = pushes.get(model_id)
        count = 1 + (known.count if known is not None and known.acls == acls else 0)
        delay = backoff_s(count, self._jitter.uniform(0.8, 1.2))
        pushes[model_id] = AclPush(acls, count, error or "", now + delay)

    def reported(self, address: str, reported: Mapping[str, Mapping[str, str]]) -> None:
        """The server has these models loaded and reports these lists, if any."""
        pushes = self._by_address.get(address)
        if not pushes:
            return
        kept = {
            model_id: push
            for model_id, push in pushes.items()
            if model_id in reported and (not reported[model_id] or reported[model_id] != push.acls)
        }
        self._by_address[address] = kept

    def forget(self, address: str) -> None:
        """Nothing known of the server holds any longer."""
        self._by_address.pop(address, None)


def backoff_s(count: int, jitter: float) -> float:
    """How long to wait after the count-th failure."""
    return min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2 ** min(count - 1, 16)) * jitter
