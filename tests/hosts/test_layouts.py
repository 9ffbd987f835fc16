"""Two hosts as one replica, in lockstep and in stages: one gang, one checkpoint of a hub.

More hosts, devices, formats and troubles are run every night, by the files beside this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from model_server.config import ModelServerConfig
from model_server.engine.request import EngineRequest
from model_server.engine.types import Sampling
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from sax.types import ModelSpec
from tests.hosts.asking import GREEDY, SEEDED, load, tokens, unload
from tests.hosts.gang import Gang
from tests.hosts.test_failures import check_lost, while_streaming
from tests.model_server.checkpoints.hub.fake_hub import FakeHub, running_hub
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.engine.drafting.driving import answers, tokens_of

pytestmark = pytest.mark.timeout(900)

MODEL = "/sax/test/spmd"
SLOTS, CONTEXT, PAGE = 2, 4096, 64
FLAGS = (f"--slots={SLOTS}", f"--max_context={CONTEXT}", f"--page_size={PAGE}", "--cpu_devices=1")
FLOAT = {"DTYPE": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return write_tiny(folder, max_position_embeddings=CONTEXT, **heads)


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[list[int]]:
    """What one process answers, this one."""
    overrides = {key: f'"{value}"' for key, value in FLOAT.items()}
    spec = ModelSpec(
        model_id=MODEL,
        model_path="auto",
        checkpoint=str(folder),
        replicas=1,
        overrides=overrides,
    )
    config = ModelServerConfig(slots=SLOTS, max_context=CONTEXT, page_size=PAGE)
    made = make_loader(config)(spec, lambda progress: None)
    assert isinstance(made, Loaded)
    asked = [
        EngineRequest(
            prompt=tuple(range(5, 25)),
            sampling=Sampling(how.temperature, how.top_k or 0, 1.0, seed=how.seed or 0),
            max_tokens=16,
            stop_ids=frozenset(),
        )
        for how in (GREEDY, SEEDED)
    ]
    with closing(made.runner):
        return [list(tokens_of(each)) for each in answers(made.runner, asked)]


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[FakeHub]:
    """It has the model, and gets another commit once a host has asked what is the newest."""
    files = {each.name: each.read_bytes() for each in folder.iterdir()}
    with running_hub() as hub:
        hub.push("acme/tiny", files)
        hub.next = {**files, "generation_config.json": b'{"top_k": 1}'}
        yield hub


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, hub: FakeHub) -> Iterator[Gang]:
    """Two hosts, each with a cache of its own for what the hub gives."""
    room = tmp_path_factory.mktemp("pair")
    homes = {host: {"HF_HOME": str(room / f"home{host}")} for host in range(2)}
    environment = {"HF_ENDPOINT": hub.url}
    with Gang(room, *FLAGS, count=2, environment=environment, own_environment=homes) as gang:
        gang.wait_until_serving()
        yield gang


def ask(gang: Gang, checkpoint: str, **overrides: Any) -> list[Any]:
    """Load the model and ask it."""
    load(gang.address, MODEL, "auto", checkpoint, **FLOAT, **overrides)
    return tokens(gang.address, MODEL, GREEDY, SEEDED)


def test_two_stages_answer_as_one_process_does(
    pair: Gang, folder: Path, alone: list[list[int]]
) -> None:
    assert ask(pair, str(folder), NUM_STAGES=2) == alone
    unload(pair.address, MODEL)


def test_lockstep_answers_as_one_process_does_and_all_hosts_load_the_commit_of_the_primary(
    pair: Gang, hub: FakeHub, alone: list[list[int]]
) -> None:
    commit = hub.heads["acme/tiny"]["main"]
    assert ask(pair, "acme/tiny") == alone
    assert hub.heads["acme/tiny"]["main"] != commit
    for host in range(2):
        home = pair.log_path(host).parent / f"home{host}"
        kept = home / "hub" / "models--acme--tiny" / "snapshots"
        assert [each.name for each in kept.iterdir()] == [commit]
    assert "compiled while serving" not in pair.logs(0) + pair.logs(1)


def test_a_host_that_is_killed_in_mid_stream_is_named(pair: Gang) -> None:
    check_lost(pair, while_streaming(pair, lambda: pair.kill(1)), 1)
