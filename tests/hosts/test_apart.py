"""Prompts computed by one replica and answered by another, both of two hosts."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import pytest

from sax.types import SamplingParams
from tests.hosts.asking import SHRUNK, SPMD, load, tokens
from tests.hosts.gang import Gang

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

MODEL = "/sax/test/spmd"
FLAGS = (
    "--slots=2",
    "--max_context=512",
    "--page_size=16",
    "--cpu_devices=1",
    "--metrics_port=0",
    "--host_timeout_seconds=30",
)
LONG = 300  # tokens: more than one step takes
HOW = (
    SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=1.0, top_k=40, seed=7, max_tokens=16, ignore_eos=True),
)


def metric(gang: Gang, name: str) -> float:
    found = re.search(r"metrics on (http://\S+)", gang.logs(0))
    assert found, gang.tails()
    page = httpx.get(f"{found[1]}metrics", trust_env=False).text
    (line,) = [line for line in page.splitlines() if line.startswith(f'{name}{{model="{MODEL}"}} ')]
    return float(line.rpartition(" ")[2])


def loaded(gang: Gang) -> Gang:
    gang.wait_until_serving()
    load(gang.address, MODEL, SPMD, **SHRUNK, MAX_CONTEXT=512, DTYPE="float32")
    return gang


def test_replicas_of_two_hosts_share_the_work_and_one_goes_on_alone(tmp_path: Path) -> None:
    with Gang(tmp_path / "prefill", *FLAGS, "--prefill", "--sax_cell=", count=2) as prefill:
        loaded(prefill)
        wanted = tokens(prefill.address, MODEL, *HOW, prompt=LONG)
        flags = (*FLAGS, f"--prefill_servers={prefill.address}")
        with Gang(tmp_path / "decode", *flags, count=2) as decode:
            loaded(decode)
            deadline = time.monotonic() + 60  # the other replica is asked to load it as well
            while not metric(decode, "sax_prompts_fetched_total"):
                assert time.monotonic() < deadline, decode.tails()
                assert tokens(decode.address, MODEL, *HOW, prompt=LONG) == wanted
            fetched = metric(decode, "sax_prompts_fetched_total")
            assert tokens(decode.address, MODEL, *HOW, prompt=LONG) == wanted
            assert metric(decode, "sax_prompts_fetched_total") == fetched + 2
            prefill.kill(1)
            assert tokens(decode.address, MODEL, *HOW, prompt=LONG) == wanted
            assert metric(decode, "sax_prompts_computed_here_total") >= 1
