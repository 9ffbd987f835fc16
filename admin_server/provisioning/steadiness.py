"""Delay actions until they have been right for a while, so that a brief absence rents no machines.

Tracks since when each action has been decided on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from admin_server.provisioning.decision import Create, Delete

_Key = tuple[str, str]


class Steadiness:
    def __init__(self, create_s: float, delete_s: float) -> None:
        self._create_s = create_s
        self._delete_s = delete_s
        self._due_at_s: dict[_Key, float] = {}

    def due(self, actions: Iterable[Create | Delete], now: float) -> list[Create | Delete]:
        """Actions decided on in every round for long enough."""
        actions = list(actions)
        self._due_at_s = {
            _key(action): self._due_at_s.get(_key(action), now + self._wait_s(action))
            for action in actions
        }
        return [action for action in actions if self._due_at_s[_key(action)] <= now]

    def next_due_s(self, now: float) -> float:
        """Seconds until the next action falls due; infinite if none is waiting."""
        return min((at for at in self._due_at_s.values() if at > now), default=math.inf) - now

    def _wait_s(self, action: Create | Delete) -> float:
        return self._create_s if isinstance(action, Create) else self._delete_s


def _key(action: Create | Delete) -> _Key:
    if isinstance(action, Create):
        return "create", action.name
    return "delete", action.present.uid
