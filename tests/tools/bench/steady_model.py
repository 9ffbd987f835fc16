"""A model server whose steps take a fixed time and no CPU: what is left is the serving path.

`python -m tests.tools.bench.steady_model --admin host:port --port N --slots 64 --step_s 0.02` joins
a cell like the real one and, at its first step, prints the native id of the engine's thread.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from model_server.__main__ import leave
from model_server.config import ModelServerConfig
from model_server.engine.limits import EngineLimits
from model_server.engine.types import RowResult, Step, StepResult
from model_server.loading.loaded import Loaded
from model_server.process.server import ModelServer
from model_server.text.tokenizer import ByteTokenizer
from sax.host import loop_factory
from sax.types import ModelSpec, Progress, SamplingParams

PAGE_SIZE = 64
CONTEXT = 4096


def limits(slots: int) -> EngineLimits:
    return EngineLimits(
        slots=slots,
        pages=slots * CONTEXT // PAGE_SIZE,
        page_size=PAGE_SIZE,
        max_context=CONTEXT,
        token_budget=512 + slots,
        max_logit_rows=2 * slots,
        queue=2 * slots,
    )


class SteadyRunner:
    """Answers every row with a letter that follows from its position, `step_s` after the last."""

    def __init__(self, slots: int, step_s: float) -> None:
        self.limits = limits(slots)
        self.ops: dict[Any, Any] = {}
        self.closed = False
        self.warmups = 0
        self._step_s = step_s
        self._free_s = 0.0  # when the device is done with what was launched
        self._told = False

    def launch(self, *steps: Step) -> _Pending:
        (step,) = steps
        if not self._told:  # steps are launched by the engine's thread, and by no other
            self._told = True
            print(threading.get_native_id(), flush=True)
        self._free_s = max(self._free_s, time.monotonic()) + self._step_s
        return _Pending(step, self._free_s)

    def do(self, op: object) -> Any:
        raise AssertionError("these are steps alone")

    def warm(self, index: int) -> None:
        """There is nothing to warm."""

    def close(self) -> None:
        self.closed = True


class _Pending:
    def __init__(self, step: Step, ready_s: float) -> None:
        self._step = step
        self._ready_s = ready_s

    def result(self) -> list[StepResult]:
        time.sleep(max(0.0, self._ready_s - time.monotonic()))
        rows = tuple(
            RowResult(token=97 + (row.start + row.count) % 26, logprob=-1.0)
            if row.yields
            else RowResult()
            for row in self._step.rows
        )
        return [StepResult(self._step.number, rows)]


def load(slots: int, step_s: float, spec: ModelSpec, report: Callable[[Progress], None]) -> Loaded:
    """The loader: nothing to read."""
    return Loaded(
        runner=SteadyRunner(slots, step_s),
        tokenizer=ByteTokenizer(256),
        chat_template=None,
        defaults=SamplingParams(),
        samples=1,
        memory=0,
        methods=("lm.generate", "lm.generate_stream"),
    )


async def serve(flags: argparse.Namespace) -> None:
    """Serve until signalled."""
    server = ModelServer(
        ModelServerConfig(port=flags.port, metrics_port=-1, admin=flags.admin),
        functools.partial(load, flags.slots, flags.step_s),
        model_paths=lambda: ("steady",),
        compiles_while_serving=lambda: 0,
    )
    await server.serve_until_signalled()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("--admin", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=64, help="streams at once (%(default)s)")
    parser.add_argument("--step_s", type=float, default=0.02, help="seconds (%(default)s)")
    flags = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(flags))
    leave(0)
