"""The hosts of a replica fetch one commit, each for itself, even while the hub gets another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.asking import GREEDY, load, tokens
from tests.hosts.gang import Gang
from tests.model_server.checkpoints.hub.fake_hub import running_hub
from tests.model_server.checkpoints.tiny_folder import write_tiny

pytestmark = [pytest.mark.timeout(900), pytest.mark.extended]

MODEL = "/sax/test/tiny"
FLAGS = ("--slots=2", "--max_context=64", "--page_size=16", "--host_timeout_seconds=60")


def test_all_hosts_load_the_commit_that_the_primary_found(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write_tiny(folder, num_attention_heads=2, num_key_value_heads=2)
    files = {each.name: each.read_bytes() for each in folder.iterdir()}
    homes = {host: {"HF_HOME": str(tmp_path / f"home{host}")} for host in range(2)}
    with running_hub() as hub:
        commit = hub.push("acme/tiny", files)
        hub.next = {**files, "generation_config.json": b'{"top_k": 1}'}
        flags = (*FLAGS, "--cpu_devices=1")
        gang = Gang(
            tmp_path / "gang",
            *flags,
            count=2,
            environment={"HF_ENDPOINT": hub.url},
            own_environment=homes,
        )
        with gang:
            gang.wait_until_serving()
            load(gang.address, MODEL, "auto", "acme/tiny")
            (answer,) = tokens(gang.address, MODEL, GREEDY)
            assert len(answer) == GREEDY.max_tokens
        assert hub.heads["acme/tiny"]["main"] != commit
        for host in homes:
            kept = tmp_path / f"home{host}" / "hub" / "models--acme--tiny" / "snapshots"
            assert [each.name for each in kept.iterdir()] == [commit]
