"""An engine over a loaded base, and its greedy answers with the adapters in its places."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from pathlib import Path

from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, EngineRequest, SequenceUpdate
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from sax.types import ModelSpec
from tests.model_server.loading.loads import spec_of

BASE = "/sax/test/base"
CONFIG = ModelServerConfig(slots=4, page_size=16, max_context=64)
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
PROMPT = tuple(range(40, 60))
TOKENS = 10


def adapter_spec(name: str, folder: Path) -> ModelSpec:
    return spec_of(folder, "lora", name, BASE=f'"{BASE}"')


class Asker:
    """An engine, and what it answers greedily."""

    def __init__(self, loaded: Loaded) -> None:
        self.updates: queue.Queue[SequenceUpdate] = queue.Queue()
        # By place: as serving does, a load of an adapter shares keys and values with itself only.
        self.salts: dict[int, str] = {}
        self.engine = Engine(loaded.runner, self._keep)

    def _keep(self, batch: list[SequenceUpdate]) -> None:
        for update in batch:
            self.updates.put(update)

    def submit(self, place: int, tokens: int = TOKENS) -> int:
        return self.engine.submit(
            EngineRequest(
                prompt=PROMPT,
                sampling=GREEDY,
                max_tokens=tokens,
                stop_ids=frozenset(),
                salt=self.salts.get(place, ""),
                adapter=place,
            )
        )

    def answers(self, *places: int) -> list[list[int]]:
        """Ask with the adapters in these places, at once."""
        return list(self.collected([self.submit(place) for place in places]).values())

    def collected(self, asked: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {each: [] for each in asked}
        open_ = set(asked)
        while open_:
            update = self.updates.get(timeout=60)
            assert update.error is None
            assert update.result.token is not None
            found[update.sequence].append(update.result.token)
            if update.finish:
                open_.remove(update.sequence)
        return found
