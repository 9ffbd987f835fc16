"""Failed loads and ACL updates, and when each is retried. Plain bookkeeping."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace

from admin_server.assignment.seen import AclPush, Failure, Place
from admin_server.ledger.state import CellState
from sax.need import Need
from sax.types import ModelSpec

_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0
_LONGEST_LOAD_S = 600.0  # most loads that failed ten times fail again, and each is told to people
# Per model, the newest: a broken checkpoint fails on one server after another.
_KEPT = 32


class Failures:
    """Failed loads, by model and address."""

    def __init__(self, jitter: random.Random) -> None:
        self._jitter = jitter
        self._by_model: dict[str, dict[str, Failure]] = {}
        self._needs: dict[str, tuple[str, Need]] = {}  # by model: version and need

    def all(self) -> Mapping[Place, Failure]:
        return {
            (address, model_id): failure
            for model_id, failures in self._by_model.items()
            for address, failure in failures.items()
        }

    def needs(self) -> Mapping[str, tuple[str, Need]]:
        """By model, the version it was learned for and what a server must have to load it."""
        return dict(self._needs)

    def fail(
        self,
        place: Place,
        version: str,
        reason: str,
        now: float,
        need: Need | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Record a failure once, however often it is seen before the next try.

        With a `need` the model is not at fault, and the need holds for every server. A lasting one
        is not tried again.
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
        # Lack of memory on one server says nothing about a load on another.
        others = [known] if need is not None else [known, *failures.values()]
        tries = [f.count for f in others if f is not None and f.version == version]
        count = 1 + max(tries, default=0)
        delay = (
            math.inf
            if lasting
            else backoff_s(count, self._jitter.uniform(0.8, 1.2), _LONGEST_LOAD_S)
        )
        failures[address] = Failure(version, count, reason, now + delay, need=need)
        if len(failures) > _KEPT:
            del failures[next(iter(failures))]

    def retry(self, place: Place) -> None:
        address, model_id = place
        failures = self._by_model.get(model_id, {})
        if address in failures:
            failures[address] = replace(failures[address], retrying=True)

    def heal(self, place: Place) -> None:
        address, model_id = place
        if model_id in self._by_model:
            self._by_model[model_id].pop(address, None)

    def forget(self, address: str) -> None:
        for failures in self._by_model.values():
            failures.pop(address, None)

    def keep_wanted(self, wanted: CellState) -> None:
        kept = {
            model_id: {
                address: failure
                for address, failure in failures.items()
                if failure.version in ("", *wanted_versions(wanted.models[model_id]))
            }
            for model_id, failures in self._by_model.items()
            if model_id in wanted.models
        }
        self._by_model = {model_id: failures for model_id, failures in kept.items() if failures}
        self._needs = {
            model_id: (version, need)
            for model_id, (version, need) in self._needs.items()
            if model_id in wanted.models and version in wanted_versions(wanted.models[model_id])
        }


def wanted_versions(spec: ModelSpec) -> tuple[str, ...]:
    return (spec.version,) if spec.canary is None else (spec.version, spec.canary.version)


class AclPushes:
    """ACLs sent to a server that does not report them yet."""

    def __init__(self, jitter: random.Random) -> None:
        self._jitter = jitter
        self._by_address: dict[str, dict[str, AclPush]] = {}

    def all(self) -> Mapping[Place, AclPush]:
        return {
            (address, model_id): push
            for address, pushes in self._by_address.items()
            for model_id, push in pushes.items()
        }

    def sent(self, place: Place, acls: Mapping[str, str], error: str | None, now: float) -> None:
        """Record that the server accepted or refused them; they are not resent for a while."""
        address, model_id = place
        pushes = self._by_address.setdefault(address, {})
        known = pushes.get(model_id)
        count = 1 + (known.count if known is not None and known.acls == acls else 0)
        delay = backoff_s(count, self._jitter.uniform(0.8, 1.2))
        pushes[model_id] = AclPush(acls, count, error or "", now + delay)

    def reported(self, address: str, reported: Mapping[str, Mapping[str, str]]) -> None:
        """Drop pushes that the server's reported ACLs confirm or that no longer apply."""
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
        self._by_address.pop(address, None)


def backoff_s(count: int, jitter: float, longest_s: float = _LONGEST_RETRY_S) -> float:
    return min(longest_s, _FIRST_RETRY_S * 2 ** min(count - 1, 16)) * jitter
