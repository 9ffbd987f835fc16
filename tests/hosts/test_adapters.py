"""Adapters give the tokens of their merged checkpoints on every mesh, over hosts and in stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts.asking import GREEDY, load, tokens, unload
from tests.hosts.gang import Gang
from tests.model_server.checkpoints.adapter_folder import ATTENTION, merged, write_adapter
from tests.model_server.checkpoints.tiny_folder import write_tiny

pytestmark = [pytest.mark.timeout(1200), pytest.mark.nightly]

FLAGS = ("--slots=4", "--max_context=64", "--page_size=16", "--host_timeout_seconds=60")
BASE = "/sax/test/base"
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,  # fewer than devices: copied
    "head_dim": 8,
}
FLOAT = {"DTYPE": "float32"}
ROOM = {"MAX_ADAPTERS": 2, "MAX_ADAPTER_RANK": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("adapters")
    base = write_tiny(room / "base", **SIZES)
    for name, how in ADAPTERS.items():
        adapter = write_adapter(room / name, base, **how)
        merged(room / f"merged-{name}", base, adapter)
    return room


ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"seed": 1, "rank": 3},
    "attention": {"seed": 2, "rank": 4, "targets": ATTENTION},
}


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[str, Any]:
    """The tokens of the base and of its merged checkpoints, on one device."""
    paths = {"base": "base"} | {name: f"merged-{name}" for name in ADAPTERS}
    with Gang(folder, *FLAGS, "--cpu_devices=1", count=1) as gang:
        gang.wait_until_serving()
        found: dict[str, Any] = {}
        for name, path in paths.items():
            load(gang.address, BASE, "auto", str(folder / path), **FLOAT)
            found[name] = tokens(gang.address, BASE, GREEDY)[0]
            unload(gang.address, BASE)
    assert len({tuple(answer) for answer in found.values()}) == 3
    return found


@pytest.mark.parametrize(
    ("hosts", "devices", "more"),
    [
        (1, 2, {}),
        (1, 4, {}),
        (1, 4, {"ICI_MESH_SHAPE": [1, 2, 2]}),
        (1, 8, {}),
        (2, 2, {}),
        (2, 1, {"NUM_STAGES": 2}),
    ],
    ids=["two", "four", "data and model", "eight", "two hosts", "two stages"],
)
def test_adapters_say_the_same_everywhere(
    folder: Path, wanted: dict[str, Any], hosts: int, devices: int, more: dict[str, Any]
) -> None:
    with Gang(folder, *FLAGS, f"--cpu_devices={devices}", count=hosts) as gang:
        gang.wait_until_serving()
        load(gang.address, BASE, "auto", str(folder / "base"), **FLOAT, **ROOM, **more)
        names = {name: f"/sax/test/{name}" for name in ADAPTERS}
        for name, model in names.items():
            load(gang.address, model, "lora", str(folder / name), BASE=BASE)
        models = {"base": BASE} | names
        assert {name: tokens(gang.address, each, GREEDY)[0] for name, each in models.items()} == (
            wanted
        )
        for model in (names["all"], BASE):
            unload(gang.address, model)
        assert "compiled while serving" not in "".join(map(gang.logs, range(hosts)))
