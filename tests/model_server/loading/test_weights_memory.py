"""Loading streams: little memory beside the weights, and nothing read that is not placed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.plan.checkpoint.convert import convert
from tests.demo_model import ROOT, demo_model
from tests.model_server.checkpoints.orbax_trees import flax_llama, save
from tests.model_server.checkpoints.tiny_folder import CONFIG, random_weights, write_tiny
from tests.model_server.loading_memory import taken
from tests.model_server.reads_on_meshes import SHAPES
from tests.processes import on_devices

MIB = 2**20
# Bands that are dequantised or quantised, files' headers, threads: the same for every model.
SLACK = 8 * MIB
# Matrices of 16 MiB in bfloat16; query, key and value are joined to the largest weight, of 48.
SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 8192,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 512,
    "vocab_size": 8192,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of 144 MiB."""
    return write_tiny(tmp_path_factory.mktemp("large") / "folder", dtype="bfloat16", **SIZES)


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Callable[[str], Path]:
    """The same model in another format, made when first asked for."""

    def of(kind: str) -> Path:
        if kind == "demo model":
            return demo_model()
        place = folder.parent / kind
        if place.exists() or kind == "folder":
            return place
        if kind == "flax":
            return _flax(folder, place)
        dtype = "q4_0" if kind == "q4_0.gguf" else "same"
        convert(str(folder), str(place), to="orbax" if kind == "orbax" else None, dtype=dtype)
        return place

    return of


def _flax(folder: Path, place: Path) -> Path:
    """Kernels transposed, each array in one piece: as Orbax writes what Flax trained."""
    save(place, flax_llama(random_weights(CONFIG | SIZES, "bfloat16")))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, place / name)
    return place


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("folder", {}),
        pytest.param("folder", {"QUANTIZE": '"int8"'}, marks=pytest.mark.nightly),
        pytest.param("q4_0.gguf", {"QUANTIZE": '"stored"'}, marks=pytest.mark.nightly),
        pytest.param("demo model", {}, marks=pytest.mark.nightly),  # Q4_1
        pytest.param("orbax", {}, marks=pytest.mark.nightly),
        pytest.param("flax", {}, marks=pytest.mark.nightly),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else value,
)
def test_loading_takes_twice_the_largest_tensor_at_most(
    checkpoint: Callable[[str], Path], kind: str, overrides: dict[str, str]
) -> None:
    found = taken(checkpoint(kind), **overrides)
    assert found.resident <= 2 * found.largest + SLACK, found


# --- what is read on a mesh ---------------------------------------------------------------------

Reads = list[tuple[str, list[tuple[int, int]]]]


def reads(mesh: str, processes: int, devices: int) -> list[Reads]:
    """What each process of a group reads."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.model_server.reads_on_meshes", mesh]
            + ([str(number), str(processes), coordinator] if processes > 1 else []),
            env=on_devices(devices),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    results = [process.communicate(timeout=280) for process in started]
    assert all(process.returncode == 0 for process in started), results
    return [json.loads(out) for out, _ in results]


def times_read(found: Reads) -> dict[str, np.ndarray]:
    """How often every number of every tensor was read."""
    times = {name: np.zeros(shape, int) for name, shape in SHAPES.items()}
    for name, region in found:
        times[name][tuple(slice(start, stop) for start, stop in region)] += 1
    return times


@pytest.mark.parametrize(
    "mesh",
    ["1x2x2", *(pytest.param(mesh, marks=pytest.mark.nightly) for mesh in ("1x1x4", "2x1x2"))],
)
def test_one_process_reads_every_number_once_whatever_the_mesh(mesh: str) -> None:
    (found,) = reads(mesh, processes=1, devices=4)
    for name, times in times_read(found).items():
        assert (times == 1).all(), name


def test_every_process_reads_the_regions_of_its_own_devices_only() -> None:
    first, second = map(times_read, reads("1x1x4", processes=2, devices=2))
    for name in ("rows", "columns", "both"):
        assert first[name].sum() == second[name].sum() == first[name].size // 2
        assert (first[name] + second[name] == 1).all(), name
    np.testing.assert_array_equal(first["upper"], 1)
    np.testing.assert_array_equal(second["upper"], 0)
    np.testing.assert_array_equal(first["lower"] + second["lower"], 1)
    for name in ("norm", "packed"):  # every device needs it whole: of rows, to find their scales
        assert (first[name] == 1).all(), name
        assert (second[name] == 1).all(), name
