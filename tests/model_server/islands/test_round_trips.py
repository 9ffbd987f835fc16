"""A decoding client waits for one round trip a token: the fetch of the tokens, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.islands.round_trips import RoundTrips

ROOT = Path(__file__).parents[3]
TOKENS = 24
F32 = json.dumps({"DTYPE": '"float32"'})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> RoundTrips:
    folder = write_tiny(tmp_path_factory.mktemp("round_trips") / "dense")
    module = "tests.model_server.islands.round_trips"
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), str(TOKENS), F32],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NPROC": "16"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=280,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=RoundTrips)


@pytest.mark.nightly
def test_a_stream_goes_on_though_nothing_but_its_fetches_is_answered(found: RoundTrips) -> None:
    assert found.unanswered.tokens == found.answered.tokens
    assert len(found.unanswered.tokens[0]) == TOKENS
    assert found.held > TOKENS


@pytest.mark.nightly
def test_a_token_is_fetched_once(found: RoundTrips) -> None:
    assert found.sent["HostBufferLookup"] == found.sent["copy_to_host_buffer_request"]
    assert found.sent["HostBufferLookup"] <= TOKENS + 1  # and the prompt's step
    waited = ("check_future_request", "check_value_ready_request")
    assert not [kind for kind in waited if found.sent.get(kind)]


@pytest.mark.nightly
def test_a_launch_computes_several_tokens(found: RoundTrips) -> None:
    assert found.sent["loaded_executable_execute_request"] < TOKENS
