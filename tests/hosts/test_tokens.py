"""One model, one answer: on one process, and on two and four of them with one and two devices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sax.errors import MemoryPlanError
from tests.demo_model import ROOT
from tests.hosts.asking import GREEDY, SEEDED, SHRUNK, SPMD, load, tokens, unload
from tests.hosts.gang import Gang
from tests.model_server.checkpoints.tiny_folder import write_tiny

pytestmark = [pytest.mark.timeout(900), pytest.mark.nightly]

FLAGS = ("--slots=2", "--max_context=64", "--page_size=16", "--host_timeout_seconds=60")
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,  # fewer than devices: copied
    "head_dim": 8,
}
EXPERTS = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
FLOAT = {"DTYPE": "float32"}


def checkpoints(folder: Path) -> dict[str, str]:
    """A dense model and one of experts, by name."""
    dense = write_tiny(folder / "dense", **SIZES)
    experts = write_tiny(
        folder / "experts",
        architectures=["MixtralForCausalLM"],
        sliding_window=None,
        tie_word_embeddings=False,
        **SIZES,
        **EXPERTS,
    )
    return {"/sax/test/dense": str(dense), "/sax/test/experts": str(experts)}


def answers(folder: Path, hosts: int, devices: int, models: dict[str, str]) -> dict[str, Any]:
    """Greedy and seeded tokens of every model; both models are loaded side by side."""
    with Gang(folder, *FLAGS, f"--cpu_devices={devices}", count=hosts) as gang:
        gang.wait_until_serving()
        for name, checkpoint in models.items():
            load(gang.address, name, "auto", checkpoint, **FLOAT)
        found = {name: tokens(gang.address, name, GREEDY, SEEDED) for name in models}
        for name in models:
            assert f"loading completed. Successfully loaded model for key: {name}" in gang.logs(0)
            unload(gang.address, name)
        assert "compiled while serving" not in "".join(map(gang.logs, range(hosts)))
        gang.terminate(hosts - 1)  # any host: the replica drains
        assert [gang.exit_code(host) for host in range(hosts)] == [0] * hosts
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return checkpoints(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, models: dict[str, str]) -> dict[str, Any]:
    """What one process with one device answers."""
    return answers(tmp_path_factory.mktemp("alone"), 1, 1, models)


@pytest.mark.parametrize(
    ("hosts", "devices"),
    [(2, 1), (2, 2), (4, 2)],
)
def test_tokens_are_those_of_one_process(
    tmp_path: Path, alone: dict[str, Any], models: dict[str, str], hosts: int, devices: int
) -> None:
    found = answers(tmp_path, hosts, devices, models)
    assert all(len(each) == 16 for pair in found.values() for each in pair)
    assert found == alone


@pytest.mark.parametrize("kind", ["orbax", "gguf"])
def test_hosts_read_their_shares_of_every_format(
    tmp_path: Path, alone: dict[str, Any], models: dict[str, str], kind: str
) -> None:
    name = "/sax/test/dense"
    target = tmp_path / ("model.gguf" if kind == "gguf" else "model")
    convert = [sys.executable, "-m", "sax.cli", "convert", models[name], str(target)]
    subprocess.run([*convert, "--to", kind], check=True, cwd=ROOT)
    with Gang(tmp_path, *FLAGS, "--cpu_devices=1", count=2) as gang:
        gang.wait_until_serving()
        load(gang.address, name, "auto", str(target), **FLOAT)
        assert tokens(gang.address, name, GREEDY, SEEDED) == alone[name]


def test_a_host_without_room_is_named_and_the_others_free_theirs(
    tmp_path: Path, models: dict[str, str]
) -> None:
    small = {1: ["--memory_limit_bytes=30000000"]}
    with Gang(tmp_path, *FLAGS, "--cpu_devices=1", count=2, own_flags=small) as gang:
        gang.wait_until_serving()
        for _ in range(2):
            with pytest.raises(MemoryPlanError, match=r"host 1 \(127.0.0.1\): the model does not"):
                load(gang.address, "/sax/test/dense", "auto", models["/sax/test/dense"], **FLOAT)
        assert gang.alive(0)
        assert gang.alive(1)


def test_random_weights_are_those_of_one_process(tmp_path: Path) -> None:
    def answer(hosts: int, devices: int) -> list[Any]:
        folder = tmp_path / f"{hosts}x{devices}"
        with Gang(folder, *FLAGS, f"--cpu_devices={devices}", count=hosts) as gang:
            gang.wait_until_serving()
            load(gang.address, "/sax/test/spmd", SPMD, **SHRUNK, **FLOAT)
            return tokens(gang.address, "/sax/test/spmd", GREEDY, SEEDED)

    assert answer(1, 1) == answer(2, 2)


@pytest.mark.parametrize(("hosts", "stages"), [(2, 2), (4, 2)])
def test_stages_on_groups_of_hosts_answer_the_same(
    tmp_path: Path, alone: dict[str, Any], models: dict[str, str], hosts: int, stages: int
) -> None:
    with Gang(tmp_path, *FLAGS, "--cpu_devices=1", count=hosts) as gang:
        gang.wait_until_serving()
        for name, checkpoint in models.items():
            load(gang.address, name, "auto", checkpoint, NUM_STAGES=stages, **FLOAT)
            assert tokens(gang.address, name, GREEDY, SEEDED) == alone[name]
