"""sax as `sax up` runs it: admin server, model server and gateway, asked through the gateway."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.cell import SMOLLM2, Cell, local_plan
from tests.tools.bench.peers.weights import Weights
from tests.tools.bench.streams import Burst, counted_burst


@dataclass(frozen=True)
class Sax:
    """`speculation` and `activations` are the overrides of those names, without quotes.

    speculation: None drafts where it pays. activations: "int8" is for quantised weights.
    """

    name: str = "sax"
    speculation: str | None = "off"
    activations: str | None = None
    way: str = "HTTP, through the gateway"
    packages: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    def refusal(self, weights: Weights) -> str:
        if self.activations and not weights.quantised:
            return "is for quantised weights"
        return ""

    def file(self, weights: Weights) -> Path:
        return weights.gguf

    def start(self, weights: Weights, streams: int) -> RunningCell:
        overrides = {"SPECULATION": self.speculation, "ACTIVATIONS": self.activations}
        if weights.quantised:
            overrides["QUANTIZE"] = "stored"
        return RunningCell(self.file(weights), overrides)


class RunningCell:
    """A cell with the model published."""

    def __init__(self, checkpoint: Path, overrides: dict[str, str | None]) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._cell = stack.enter_context(Cell(local_plan(folder)))
            self._cell.publish(str(checkpoint), model_path="auto", overrides=overrides)
            self._close = stack.pop_all()

    def answer(self, prompts: Sequence[str], tokens: int) -> Burst:
        return asyncio.run(counted_burst(self._cell.url, SMOLLM2, prompts, tokens))

    def pids(self) -> Sequence[int]:
        return tuple(self._cell.pids().values())

    def close(self) -> None:
        self._close.close()
