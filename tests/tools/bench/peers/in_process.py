"""Peers without a streaming server of their own: their engines, driven in their own Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tools.bench.peers.installation import python_of
from tests.tools.bench.peers.peer import THREADS, Driver, Process
from tests.tools.bench.peers.weights import Weights

DRIVERS = Path(__file__).parent / "drivers"
WAY = "in its own process, no HTTP"


@dataclass(frozen=True)
class Transformers:
    """Eager PyTorch, all streams as one batch that begins and ends together."""

    name: str = "transformers"
    way: str = f"{WAY}, one static batch"
    packages: tuple[str, ...] = ("torch==2.13.0", "transformers")
    unwanted: tuple[str, ...] = ()

    def refusal(self, weights: Weights) -> str:
        return "would dequantise the weights" if weights.quantised else ""

    def file(self, weights: Weights) -> Path:
        assert weights.folder is not None
        return weights.folder

    def start(self, weights: Weights, streams: int) -> Driver:
        words = [str(self.file(weights)), str(THREADS)]
        return _driver(self.name, "transformers_bursts.py", words)


@dataclass(frozen=True)
class OpenVino:
    """OpenVINO GenAI with continuous batching and its prefix cache."""

    name: str = "openvino-genai"
    way: str = f"{WAY}; reads bfloat16 weights as float16"
    packages: tuple[str, ...] = ("openvino-genai==2026.4.1.0",)
    unwanted: tuple[str, ...] = ()

    def refusal(self, weights: Weights) -> str:
        return "reads no GGUF files of models with experts" if weights.experts else ""

    def file(self, weights: Weights) -> Path:
        return weights.float16

    def start(self, weights: Weights, streams: int) -> Driver:
        words = [str(self.file(weights)), str(THREADS), str(streams)]
        return _driver(self.name, "openvino_bursts.py", words)


def _driver(name: str, script: str, words: Sequence[str]) -> Driver:
    command = [str(python_of(name)), str(DRIVERS / script), *words]
    return Driver(Process(name, command, {"HF_HUB_OFFLINE": "1"}, piped=True))
