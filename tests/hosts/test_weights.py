"""New weights for a replica of two hosts: all change together, or none does and one is named."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sax.errors import SaxError, Unavailable
from sax.proto import control_pb2
from sax.types import SamplingParams
from sax.weights import Pausing, ReplicaWeights, WeightAction, WeightChange
from sax.wire import rpc
from sax.wire.weights import decode_replica, encode_weights
from tests.each_case import Failures
from tests.hosts.asking import GREEDY, load, tokens
from tests.hosts.gang import Gang
from tests.model_server.checkpoints.tiny_folder import write_tiny

pytestmark = [pytest.mark.timeout(1200), pytest.mark.nightly]

MODEL = "/sax/test/m"
FILE = "model.safetensors"
FLAGS = ("--slots=4", "--max_context=512", "--page_size=16", "--host_timeout_seconds=60")
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


class Homes:
    """A home folder of each host, so that `~/NAME` is a checkpoint of its own on each."""

    def __init__(self, room: Path) -> None:
        self.folders = [room / f"home-{host}" for host in range(2)]
        draw = np.random.default_rng(1)
        for name in ("old", "new"):
            made = write_tiny(room / name, **SIZES)
            stored = load_file(made / FILE)
            if name == "new":
                stored = {
                    each: draw.standard_normal(array.shape).astype(array.dtype)
                    for each, array in stored.items()
                }
                save_file(stored, made / FILE)
            for home in self.folders:
                shutil.copytree(made, home / name)
        self.old, self.tensors = room / "old", stored

    def but_for(self, host: int, name: str, change: Callable[[Path], None]) -> str:
        """The new checkpoint in all homes, and another one in this host's."""
        for home in self.folders:
            shutil.copytree(home / "new", home / name)
        change(self.folders[host] / name)
        return f"~/{name}"


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Homes:
    return Homes(tmp_path_factory.mktemp("homes"))


@pytest.fixture(scope="module")
def gang(homes: Homes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    own = {host: {"HOME": str(home)} for host, home in enumerate(homes.folders)}
    logs = tmp_path_factory.mktemp("gang")
    with Gang(logs, *FLAGS, "--cpu_devices=1", count=2, own_environment=own) as made:
        made.wait_until_serving()
        load(made.address, MODEL, "auto", str(homes.old), DTYPE="float32")
        yield made
        assert "compiled while serving" not in made.logs(0) + made.logs(1)


def asked(gang: Gang, action: WeightAction, **more: Any) -> ReplicaWeights:
    change = encode_weights(WeightChange(model_id=MODEL, action=action, **more))

    async def ask() -> Any:
        channel = rpc.open_channel(gang.address)
        try:
            answer = control_pb2.ReplicaWeights
            return await rpc.call(
                channel, "/sax.Control/Weights", change, answer, peer=gang.address, timeout_s=120
            )
        finally:
            await channel.close()

    return decode_replica(asyncio.run(ask()))


def answer(gang: Gang) -> list[int]:
    return tokens(gang.address, MODEL, GREEDY)[0]


def truncate(folder: Path) -> None:
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole[: len(whole) // 2])


def test_a_gang_changes_sleeps_wakes_and_pauses_as_one(gang: Gang) -> None:
    asked(gang, WeightAction.UPDATE, source="~/old", version="1")
    old = answer(gang)
    for mode in Pausing:
        told = asked(gang, WeightAction.UPDATE, source="~/new", pausing=mode)
        new = answer(gang)
        assert new != old
        back = asked(gang, WeightAction.UPDATE, source="~/old", pausing=mode)
        assert (int(back.version), answer(gang)) == (int(told.version) + 1, old)
    assert asked(gang, WeightAction.SLEEP).state == "asleep"
    with pytest.raises(Unavailable, match="asleep"):
        asked(gang, WeightAction.UPDATE, source="~/new")
    assert asked(gang, WeightAction.WAKE).version == back.version
    assert answer(gang) == old
    asked(gang, WeightAction.SLEEP)
    asked(gang, WeightAction.WAKE, source="~/new")
    assert answer(gang) == new
    assert asked(gang, WeightAction.PAUSE, pausing=Pausing.KEEP).state == "paused"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(answer, gang)
        asked(gang, WeightAction.UPDATE, source="~/old")
        assert not waiting.done()
        assert asked(gang, WeightAction.RESUME).state == "serving"
        assert waiting.result(120) == old


def test_what_one_host_cannot_read_changes_no_host(gang: Gang, homes: Homes) -> None:
    asked(gang, WeightAction.UPDATE, source="~/old", version="7")
    old = answer(gang)
    wide = {**homes.tensors, "model.norm.weight": np.ones(65, np.float32)}
    some = {name: array for name, array in homes.tensors.items() if ".layers.1." not in name}
    faults: dict[str, tuple[Callable[[Path], None], str]] = {
        "torn": (truncate, "truncated"),
        "missing": (shutil.rmtree, "does not exist"),
        "wide": (lambda folder: save_file(wide, folder / FILE), r"is \[65\]"),
        "some": (lambda folder: save_file(some, folder / FILE), "lacks model.layers.1"),
    }
    failures = Failures()
    for host in (0, 1):
        for fault, (change, text) in faults.items():
            source = homes.but_for(host, f"{fault}-{host}", change)
            with failures.of(f"{fault} on host {host}"):
                with pytest.raises(SaxError, match=text) as caught:
                    asked(gang, WeightAction.UPDATE, source=source)
                assert host == 0 or "host 1" in caught.value.text
                assert asked(gang, WeightAction.STATUS).version == "7"
                assert answer(gang) == old
    failures.end()
    assert asked(gang, WeightAction.UPDATE, source="~/new").version == "8"
    assert answer(gang) != old


def test_of_several_changes_at_once_one_is_made_and_no_answer_is_of_two_weights(
    gang: Gang,
) -> None:
    asked(gang, WeightAction.UPDATE, source="~/new")
    new = tokens(gang.address, MODEL, LONG)[0]
    asked(gang, WeightAction.UPDATE, source="~/old")
    old = tokens(gang.address, MODEL, LONG)[0]

    def change(_: int) -> str:
        try:
            return asked(gang, WeightAction.UPDATE, source="~/new").version
        except Unavailable as exc:
            return exc.text

    with ThreadPoolExecutor(5) as pool:
        running = pool.submit(tokens, gang.address, MODEL, LONG)
        told = list(pool.map(change, range(4)))
        assert running.result(120)[0] in (old, new)
    assert any(each.isdecimal() for each in told), told
    assert any("is under way: try again" in each for each in told), told
    assert tokens(gang.address, MODEL, LONG)[0] == new
