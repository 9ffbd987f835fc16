"""The engine of a loaded language model, or those of its islands."""

from __future__ import annotations

from typing import Any

from model_server.engine.engine import Engine
from model_server.engine.failure import DevicesLost
from model_server.engine.islands.engine_group import EngineGroup
from model_server.engine.islands.split_group import SplitGroup
from model_server.engine.outbox import Deliver
from model_server.engine.running.ops import Runner
from model_server.engine.timing.watchdog import OnHang
from model_server.islands.proxy_backend import BACKEND
from model_server.loading.loaded import Loaded
from sax.errors import ReplicaLost


def engine_of(loaded: Loaded, deliver: Deliver, on_hang: OnHang | None) -> Engine | EngineGroup:
    """Return a model's engine, or those of its islands, which come and go by themselves."""

    def make(runner: Runner, deliver: Deliver, **shared: Any) -> Engine:
        times, limit_s = loaded.step_times, loaded.step_limit_s
        return Engine(runner, deliver, times, limit_s, on_hang, loaded.stream_interval_s, **shared)

    islands = loaded.islands
    if islands is None:
        return make(loaded.runner, deliver)

    def lost(island: str, failure: DevicesLost) -> None:
        islands.lost(island, group.add, lambda: group.give_up(_nowhere(failure)))

    if (moves := islands.moves) is None:
        group = EngineGroup(deliver, make, lost)
    else:
        limits = loaded.runner.limits
        group = SplitGroup(deliver, limits, moves.prompts, moves, make, lost)
    for island, lanes in islands.lanes.items():
        group.add(island, *lanes)
    BACKEND.listen(islands, lambda why: group.lose(DevicesLost(why)))
    islands.watch(lambda island: group.lose(DevicesLost("it does not answer"), island))
    return group


def _nowhere(failure: DevicesLost) -> ReplicaLost:
    return ReplicaLost(f"all devices of this replica are lost ({failure}); try another replica")
