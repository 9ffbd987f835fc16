"""Loading weights against reading the same files: what turning bytes into weights costs.

Both start from the disk: the files are dropped from the page cache before every try, and the two
take turns. Weights are placed on the CPU device; nothing is compiled.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np

from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from model_server.plan.checkpoint.convert import convert
from tests.demo_model import demo_model
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.tools.bench.table import Table

ROUNDS = 15
_WARMING = 5  # a virtual machine takes its time to hand out memory that was never touched
# Matrices as large as those of models of some billions, in a file that fits a laptop.
_WIDE: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32768,
}
_CHUNK = 16 * 2**20


def run() -> Table:
    table = Table(
        "Loading against reading",
        f"SmolLM2-135M-Instruct in every format, and random weights in the shapes of a model of 8B "
        f"parameters (two layers), served as bfloat16 unless said; medians of {ROUNDS} tries, in "
        "turns, from the disk (page cache dropped). Reading is one thread that reads 16 MiB at a "
        "time into the same buffer; keeping, measured apart, is reading into memory of its own, "
        "which weights need. Bar for what is stored as it is served: 1.5 times reading.",
        (
            "checkpoint",
            "MB",
            "reading ms",
            "keeping ms",
            "loading ms",
            "loading / reading",
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        for title, path, quantize in _checkpoints(Path(folder)):
            tries = range(_WARMING + ROUNDS)
            pairs = [(_reading_s(path), _loading_s(path, quantize)) for _ in tries][_WARMING:]
            keeping_s = statistics.median(_keeping_s(path) for _ in range(ROUNDS))
            reading_s, loading_s = (statistics.median(of) for of in zip(*pairs, strict=True))
            times_s = (reading_s, keeping_s, loading_s)
            table.add(
                title,
                f"{sum(file.stat().st_size for file in _files(path)) / 1e6:.0f}",
                *(f"{1e3 * time_s:.0f}" for time_s in times_s),
                f"{statistics.median(pair[1] / pair[0] for pair in pairs):.2f}",
            )
    return table


def _checkpoints(folder: Path) -> list[tuple[str, Path, str]]:
    demo = str(demo_model())
    plain, wide, orbax = folder / "bf16", folder / "f32", folder / "orbax"
    gguf, large = folder / "bf16.gguf", folder / "large"
    write_tiny(large, dtype="bfloat16", **_WIDE)
    convert(str(large), str(folder / "large.gguf"))
    convert(str(large), str(folder / "large-orbax"), to="orbax")
    convert(demo, str(plain), dtype="bfloat16")
    convert(demo, str(wide), dtype="float32")
    convert(demo, str(gguf), dtype="bfloat16")
    convert(demo, str(orbax), dtype="bfloat16", to="orbax")
    os.sync()  # or the disk would still be writing
    return [
        ("8B shapes, Hugging Face, BF16", large, "null"),
        ("8B shapes, GGUF, BF16", folder / "large.gguf", "null"),
        ("8B shapes, Orbax, BF16", folder / "large-orbax", "null"),
        ('8B shapes, Hugging Face, BF16, to "int8"', large, '"int8"'),
        ("Hugging Face, BF16", plain, "null"),
        ("GGUF, BF16", gguf, "null"),
        ("Orbax, BF16", orbax, "null"),
        ("Hugging Face, F32", wide, "null"),
        ("GGUF, Q4_1, kept quantised", Path(demo), '"stored"'),
        ("GGUF, Q4_1", Path(demo), "null"),
        ('Hugging Face, BF16, to "int8"', plain, '"int8"'),
    ]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def _drop_from_cache(path: Path) -> None:
    for file in _files(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _reading_s(path: Path) -> float:
    _drop_from_cache(path)
    buffer = bytearray(_CHUNK)
    began_s = time.perf_counter()
    for file in _files(path):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.perf_counter() - began_s


def _keeping_s(path: Path) -> float:
    _drop_from_cache(path)
    began_s = time.perf_counter()
    kept = []
    for file in _files(path):
        with file.open("rb", buffering=0) as opened:
            whole = memoryview(np.empty(file.stat().st_size, np.uint8))
            kept.append(whole)
            while whole and (count := opened.readinto(whole[:_CHUNK])):
                whole = whole[count:]
    return time.perf_counter() - began_s


def _loading_s(path: Path, quantize: str) -> float:
    _drop_from_cache(path)
    began_s = time.perf_counter()
    with closing(open_checkpoint(str(path))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, {"QUANTIZE": quantize})
        module = recipe.blueprint(checkpoint=checkpoint)
        prepared_s = time.perf_counter()
        leaves = read_weights(module.declarations, checkpoint, lambda _: None)
        jax.block_until_ready(leaves)
    # Building the module is the same for every format and reads nothing.
    return time.perf_counter() - began_s - (prepared_s - began_s)
