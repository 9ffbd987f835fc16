"""Prompts computed by one replica and answered by another, both of two hosts."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from sax.types import SamplingParams
from tests.hosts.asking import SHRUNK, SPMD, load, tokens
from tests.hosts.gang import Gang
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.test_recurrent_models import folder_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.nightly]

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
JUST = 257  # these too, and ids that the tiny tokenizer has
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


def until_fetched(decode: Gang, wanted: list[Any], prompt: int = LONG) -> None:
    """Ask until the other replica is used: it is asked to load the model as well."""
    deadline = time.monotonic() + 60
    while not metric(decode, "sax_prompts_fetched_total"):
        assert time.monotonic() < deadline, decode.tails()
        assert tokens(decode.address, MODEL, *HOW, prompt=prompt) == wanted


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
            until_fetched(decode, wanted)
            fetched = metric(decode, "sax_prompts_fetched_total")
            assert tokens(decode.address, MODEL, *HOW, prompt=LONG) == wanted
            assert metric(decode, "sax_prompts_fetched_total") == fetched + 2
            prefill.kill(1)
            assert tokens(decode.address, MODEL, *HOW, prompt=LONG) == wanted
            assert metric(decode, "sax_prompts_computed_here_total") >= 1


def test_shards_of_states_are_handed_over_too(tmp_path: Path) -> None:
    """From each host to its counterpart, in pages of their own."""
    folder = folder_of("qwen3_next", tmp_path, max_position_embeddings=512)
    spec = {"DTYPE": "float32", "MAX_CONTEXT": 512}
    with Gang(tmp_path / "prefill", *FLAGS, "--prefill", "--sax_cell=", count=2) as prefill:
        prefill.wait_until_serving()
        load(prefill.address, MODEL, "auto", folder, **spec)
        wanted = tokens(prefill.address, MODEL, *HOW, prompt=JUST)
        flags = (*FLAGS, f"--prefill_servers={prefill.address}")
        with Gang(tmp_path / "decode", *flags, count=2) as decode:
            decode.wait_until_serving()
            load(decode.address, MODEL, "auto", folder, **spec)
            until_fetched(decode, wanted, JUST)
            fetched = metric(decode, "sax_prompts_fetched_total")
            assert tokens(decode.address, MODEL, *HOW, prompt=JUST) == wanted
            assert metric(decode, "sax_prompts_fetched_total") == fetched + 2
            assert "compiled while serving" not in decode.logs(0) + decode.logs(1)


def test_shards_of_a_draft_model_are_handed_over_too(tmp_path: Path) -> None:
    """Its pages beside the model's, from each host to its counterpart."""
    folder = str(write_tiny(tmp_path / "tiny", max_position_embeddings=512))
    draft = {"SPECULATION": "draft", "DRAFT_MODEL": folder, "DTYPE": "float32"}
    with Gang(tmp_path / "prefill", *FLAGS, "--prefill", "--sax_cell=", count=2) as prefill:
        prefill.wait_until_serving()
        load(prefill.address, MODEL, "auto", folder, **draft)
        wanted = tokens(prefill.address, MODEL, *HOW, prompt=JUST)
        flags = (*FLAGS, f"--prefill_servers={prefill.address}")
        with Gang(tmp_path / "decode", *flags, count=2) as decode:
            decode.wait_until_serving()
            load(decode.address, MODEL, "auto", folder, **draft)
            until_fetched(decode, wanted, JUST)
            fetched = metric(decode, "sax_prompts_fetched_total")
            assert tokens(decode.address, MODEL, *HOW, prompt=JUST) == wanted
            assert metric(decode, "sax_prompts_fetched_total") == fetched + 2
            assert "compiled while serving" not in decode.logs(0) + decode.logs(1)
