"""A draft model drafts on every mesh and over hosts, and the tokens are those without it."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.end_to_end.cell import free_ports
from tests.hosts.asking import GREEDY, SEEDED, load, tokens, unload
from tests.hosts.gang import Gang
from tests.model_server.checkpoints.tiny_folder import write_tiny

pytestmark = [pytest.mark.timeout(1200), pytest.mark.nightly]

FLAGS = ("--slots=4", "--max_context=64", "--page_size=16", "--host_timeout_seconds=60")
MODEL = "/sax/test/drafted"
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,  # fewer than devices: copied
    "head_dim": 8,
}
FLOAT = {"DTYPE": "float32"}
LAYERS = 24
ROUNDS = 4
_FIRST = re.compile(r"model\.layers\.0\.|model\.(embed|norm)")
_ADDED = re.compile(r"(o_proj|down_proj)\.weight$")  # what a layer adds to the residual stream


def deep(folder: Path) -> Path:
    """A model of which all layers but the first add nothing."""
    write_tiny(folder, num_hidden_layers=LAYERS, **SIZES)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name, weight in weights.items():
        if not _FIRST.match(name) and _ADDED.search(name):
            weights[name] = np.zeros_like(weight)
    save_file(weights, file)
    return folder


def first_layer(folder: Path, of: Path) -> Path:
    """A model of the first layer alone: it says the same, and its steps take a fraction."""
    write_tiny(folder, num_hidden_layers=1, **SIZES)
    weights = load_file(of / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if _FIRST.match(name)}
    save_file(kept, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model and its draft model."""
    folder = tmp_path_factory.mktemp("models")
    model = deep(folder / "deep")
    return model, first_layer(folder / "first", model)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, models: tuple[Path, Path]) -> list[Any]:
    """What one device answers without draft tokens."""
    with Gang(tmp_path_factory.mktemp("alone"), *FLAGS, "--cpu_devices=1") as gang:
        gang.wait_until_serving()
        load(gang.address, MODEL, "auto", str(models[0]), SPECULATION="off", **FLOAT)
        return tokens(gang.address, MODEL, GREEDY, SEEDED)


def repeated(answer: list[int]) -> int:
    """The tokens that a lookup can draft: the three before them occurred earlier."""
    seen = list(range(5, 25)) + answer
    groups = [tuple(seen[place - 3 : place]) for place in range(3, len(seen))]
    return sum(group in groups[:place] for place, group in enumerate(groups) if place >= 17)


def counted(port: int, name: str) -> int:
    """A counter of the server's metrics, of all its models."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if re.match(rf"{name}[_{{ ]", line))


@pytest.mark.parametrize(
    ("hosts", "devices", "more"),
    [
        (1, 2, {}),
        (1, 4, {"ICI_MESH_SHAPE": [1, 2, 2]}),
        (1, 8, {}),
        (2, 1, {}),
        (2, 2, {}),
        (4, 2, {}),
        (2, 1, {"NUM_STAGES": 2}),
        (4, 1, {"NUM_STAGES": 2}),
    ],
    ids=[
        "two",
        "data and model",
        "eight",
        "two hosts",
        "two hosts of two",
        "four hosts of two",
        "two stages",
        "two stages of two hosts",
    ],
)
def test_draft_tokens_leave_the_tokens_alone(
    tmp_path: Path,
    models: tuple[Path, Path],
    alone: list[Any],
    hosts: int,
    devices: int,
    more: dict[str, Any],
) -> None:
    model, draft = map(str, models)
    (port,) = free_ports(1)
    flags = (*FLAGS, f"--cpu_devices={devices}")
    metrics = {0: [f"--metrics_port={port}"]}
    with Gang(tmp_path, *flags, count=hosts, own_flags=metrics) as gang:
        gang.wait_until_serving()
        drafted = {"SPECULATION": "draft", "DRAFT_MODEL": draft, "MAX_GUESSES": 4}
        load(gang.address, MODEL, "auto", model, **drafted, **FLOAT, **more)
        for _ in range(ROUNDS):
            assert tokens(gang.address, MODEL, GREEDY, SEEDED) == alone
        assert counted(port, "sax_spec_accepted_tokens") > ROUNDS * sum(map(repeated, alone))
        unload(gang.address, MODEL)
        assert "compiled while serving" not in "".join(map(gang.logs, range(hosts)))
        gang.terminate(hosts - 1)
        assert [gang.exit_code(host) for host in range(hosts)] == [0] * hosts
