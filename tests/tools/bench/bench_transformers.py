"""The same model in transformers on torch, where a Python with both is at hand.

Neither is a dependency: SAX_BENCH_TORCH names a Python that has them (pip install torch==2.13.0
transformers); without it the table says that it was skipped.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.demo_model import demo_model
from tests.tools.bench.bench_engine import BATCHES, DECODE_STEPS, PROMPT_TOKENS, Decoding
from tests.tools.bench.rounds import load
from tests.tools.bench.table import Table

ROUNDS = 3
_SCRIPT = """
import json, sys, time, torch, transformers
torch.set_num_threads(2)
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
print("ready", flush=True)
for line in sys.stdin:
    batch, prompt, steps = json.loads(line)
    ids = torch.randint(3, 40000, (batch, prompt))
    with torch.inference_mode():
        out = model(ids, use_cache=True)
        cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        began = time.perf_counter()
        for _ in range(steps):
            out = model(token, past_key_values=cache, use_cache=True)
            cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        print(batch * steps / (time.perf_counter() - began), flush=True)
"""


def run() -> Table:
    table = Table(
        "Engine decode against transformers",
        f"The same bf16 weights and {PROMPT_TOKENS}-token prompts, greedy, {DECODE_STEPS} steps, 2 "
        f"threads each, in turns; median of {ROUNDS}. transformers runs eagerly on torch.",
        ("batch", "sax tokens/s", "transformers tokens/s", "sax / transformers"),
    )
    python = os.environ.get("SAX_BENCH_TORCH")
    if not python:
        table.add("skipped: SAX_BENCH_TORCH names no Python with torch", "", "", "")
        return table
    with tempfile.TemporaryDirectory() as folder:
        _race(table, python, _as_hugging_face(Path(folder) / "model"))
    return table


def _as_hugging_face(folder: Path) -> Path:
    words = ["-m", "sax.cli", "convert", str(demo_model()), str(folder)]
    subprocess.run([sys.executable, *words, "--dtype", "bfloat16"], check=True)
    return folder


def _race(table: Table, python: str, folder: Path) -> None:
    loaded = load()
    with subprocess.Popen(
        [python, "-c", _SCRIPT, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        assert peer.stdout.readline() == "ready\n", "the peer did not start"

        def peer_rate(batch: int) -> float:
            assert peer.stdin is not None
            assert peer.stdout is not None
            peer.stdin.write(json.dumps([batch, PROMPT_TOKENS, DECODE_STEPS]) + "\n")
            peer.stdin.flush()
            return float(peer.stdout.readline())

        for batch in BATCHES:
            decoding = Decoding(loaded, batch)
            pairs = [(decoding.tokens_per_second(), peer_rate(batch)) for _ in range(ROUNDS)]
            decoding.stop()
            ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            table.add(batch, f"{ours:.0f}", f"{theirs:.0f}", f"{ratio:.2f}")
        peer.stdin.close()
