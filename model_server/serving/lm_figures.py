"""What a loaded language model tells of itself: its memory, load, figures, and why it failed."""

from __future__ import annotations

from model_server.engine.engine import Engine, EngineStats
from model_server.engine.failure import DevicesLost, as_load_error
from model_server.engine.islands.engine_group import EngineGroup
from model_server.loading.loaded import Loaded
from model_server.serving.query_cost import CostMeter
from sax.activity import Activity
from sax.errors import ReplicaLost
from sax.memory_parts import MemoryParts


class Spans:
    """Spans of time: how many there were, and their sum in seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds


class LmFigures:
    loaded: Loaded
    prompt_tokens: int
    first_tokens: Spans  # from arrival to the first token
    token_intervals: Spans  # mean per token after the first, of ended answers
    _engine: Engine | EngineGroup
    _lost: ReplicaLost | None

    def has_slot(self, sequence: int) -> bool:
        """Return False while a sequence waits in the queue, and once it has ended."""
        return self._engine.has_slot(sequence)

    @property
    def note(self) -> str:
        return "; ".join(filter(None, (self.loaded.note, self.lost_islands)))

    @property
    def lost_islands(self) -> str:
        """Count of lost islands, for messages; "" if none is."""
        if self.loaded.islands is None or not isinstance(self._engine, EngineGroup):
            return ""
        lost = self.loaded.islands.lost_of(self._engine.islands)
        return f"{lost} of {self.loaded.islands.count} islands lost" if lost > 0 else ""

    @property
    def computes(self) -> bool:
        """False while fewer islands compute than readiness asks for."""
        if self.loaded.islands is None or not isinstance(self._engine, EngineGroup):
            return True
        return self.loaded.islands.suffice(self._engine.islands)

    @property
    def kernels(self) -> str:
        return self.loaded.kernels

    @property
    def memory(self) -> int:
        """Bytes of weights, KV pages and workspace."""
        return self.loaded.memory

    @property
    def parts(self) -> MemoryParts:
        return self.loaded.parts

    @property
    def activity(self) -> Activity:
        stats = self.stats()
        return Activity(
            slots=stats.slots,
            slots_used=stats.slots_used,
            pages=stats.pages,
            pages_used=stats.pages_used,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=stats.prefix_hits,
            generated_tokens=stats.tokens,
            answers_begun=self.first_tokens.count,
            first_token_s=self.first_tokens.total_s,
            answers_timed=self.token_intervals.count,
            token_interval_s=self.token_intervals.total_s,
        )

    @property
    def running(self) -> int:
        """Sequences with a slot."""
        return self.stats().running

    @property
    def waiting(self) -> int:
        return self.stats().waiting

    @property
    def failure(self) -> str | None:
        failed = self._lost or self._engine.failed
        if isinstance(failed, DevicesLost) and self.loaded.islands is not None:
            return None  # it waits for an island
        return f"the engine stopped: {as_load_error(failed).text}" if failed else None

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def cost_meter(self) -> CostMeter:
        """Begin to measure what a request costs."""
        return CostMeter(self._engine.stats, self.loaded.devices)
