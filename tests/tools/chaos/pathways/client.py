"""A client process: `python -m tests.tools.chaos.pathways.client SEED`, told what to do on stdin.

Says on stdout, in one line of JSON each, when a call of jax begins and how it ended. Times are of
the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import jax

from model_server.islands import BACKEND
from tests.tools.chaos.pathways.deeds import Deeds, Step

RIGHT, WRONG = "right", "WRONG NUMBERS"
_BREATH_S = 0.03  # between deeds: the machine has others to serve


def tell(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Client:
    """Does deeds, connects again, and never ends by itself."""

    def __init__(self, seed: int) -> None:
        self._luck = random.Random(seed)
        self._calls = 0
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._deeds: Deeds | None = None
        self._kept: dict[int, tuple[Any, Any]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self) -> None:
        """Carry out commands until stdin ends."""
        while (command := self._commands.get())["do"] != "end":
            right = getattr(self, f"_{command.pop('do')}")(**command)
            gc.collect()
            tell(done=True, right=right, arrays=len(jax.live_arrays()) if self._deeds else 0)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        self._commands.put({"do": "end"})
        time.sleep(1)
        os._exit(0)  # whatever the main thread waits for

    def _deed(self, name: str, island: int, size: str) -> bool:
        deeds = self._connected()
        return deeds is not None and self._all(deeds.deed(name, island, size))

    def _check(self) -> bool:
        deeds = self._connected()
        return deeds is not None and all(self._all(deed) for deed in deeds.round())

    def _loop(self) -> bool:
        """Do small deeds of all kinds until the next command comes."""
        while self._commands.empty():
            if (deeds := self._connected()) is None:
                continue
            for deed in deeds.round():
                self._all(deed)
                time.sleep(_BREATH_S)
                if not self._commands.empty() or BACKEND.trouble:
                    break
        return True

    def _keep(self) -> bool:
        if (deeds := self._connected()) is None:
            return False
        self._kept = deeds.keep()
        return True

    def _old(self) -> bool:
        """Read what was kept: each of it is right, or its loss is told."""
        if (deeds := self._connected()) is None:
            return False
        for island, (array, numbers) in self._kept.items():
            for step in deeds.read(island, array, numbers):
                self._call(step)
            del array
        self._kept = {}
        return True

    def _all(self, steps: Iterable[Step]) -> bool:
        return all(self._call(step) for step in steps)

    def _call(self, step: Step) -> bool:
        self._calls += 1
        tell(call=self._calls, name=step.name, islands=step.islands, begun_s=time.monotonic())
        try:
            said = RIGHT if step.act() else WRONG
        except jax.errors.JaxRuntimeError as exc:
            said = str(exc).strip() or "an error without a text"
        except Exception as exc:
            said = f"UNTYPED {type(exc).__name__}: {exc}"
        tell(call=self._calls, ended_s=time.monotonic(), said=said[:400])
        return said == RIGHT

    def _connected(self) -> Deeds | None:
        """Deeds of a connection that holds, as far as is known."""
        if self._deeds is not None and not BACKEND.trouble:
            return self._deeds
        made: list[Deeds] = []

        def connect() -> bool:
            BACKEND.reconnect()
            made.append(Deeds(self._luck))
            return True

        self._deeds = None
        if self._call(Step("connect", (), connect)):
            self._deeds = made[0]
        return self._deeds


def main() -> None:
    faulthandler.enable()  # jaxlib's client may end the process: where?
    BACKEND.register(os.environ)
    Client(int(sys.argv[1])).run()
    os._exit(0)  # the client's callbacks abort a process that ends while connected


if __name__ == "__main__":
    main()
