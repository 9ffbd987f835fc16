"""One operator who changes the cell all the time, and remembers what was acknowledged.

The publications ask for no replica, so that every change is the admin server's alone.
"""

from __future__ import annotations

import random
import threading

from sax.client import Client
from sax.errors import SaxError
from tests.hosts.asking import SPMD

_GAP_S = 0.5
_NAMES = 20


class Changes:
    """Publishes, updates and unpublishes at random. Use as a context manager."""

    def __init__(self, admin: str, seed: int) -> None:
        self.acknowledged = 0
        self.refused = 0
        self._admin = admin
        self._luck = random.Random(seed)
        self._wanted: dict[str, str] = {}  # model -> checkpoint, as acknowledged
        self._unsure: set[str] = set()  # their last change was not acknowledged
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._change_on, daemon=True)

    def __enter__(self) -> Changes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def complaints(self) -> list[str]:
        """What was acknowledged and is not so. Call it after the end."""
        with Client(admin=self._admin) as client:
            found = {m.spec.model_id: m.spec.checkpoint for m in client.list_all("/sax/test")}
        names = {_name(number) for number in range(_NAMES)} - self._unsure
        return [
            f"{name} is {found.get(name)}, and {self._wanted.get(name)} was acknowledged"
            for name in sorted(names)
            if found.get(name) != self._wanted.get(name)
        ]

    def _change_on(self) -> None:
        with Client(admin=self._admin) as client:
            number = 0
            while not self._ended.wait(_GAP_S):
                number += 1
                self._change(client, _name(self._luck.randrange(_NAMES)), f"/change/{number}")

    def _change(self, client: Client, name: str, checkpoint: str) -> None:
        try:
            if name not in self._wanted:
                client.publish(name, SPMD, checkpoint, replicas=0)
                self._wanted[name] = checkpoint
            elif self._luck.random() < 0.3:
                client.unpublish(name)
                del self._wanted[name]
            else:
                client.update(name, checkpoint=checkpoint)
                self._wanted[name] = checkpoint
        except SaxError:
            self.refused += 1
            self._unsure.add(name)
        else:
            self.acknowledged += 1


def _name(number: int) -> str:
    return f"/sax/test/change-{number}"
