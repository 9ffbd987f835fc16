"""The race with other servers: its prompts, medians of heats, the table of them, the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from tests.demo_model import demo_model
from tests.tools.bench.peers.picture import draw
from tests.tools.bench.peers.results import Absence, Heat, Results, Stay, table
from tests.tools.bench.peers.workload import WORKLOADS, Workload, one_token_words, prompts


def heat(peer: str, streams: int, tokens_per_s: float, weights: str = "bfloat16") -> Heat:
    return Heat(
        peer=peer,
        weights=weights,
        workload="short",
        streams=streams,
        tokens_per_s=tokens_per_s,
        first_token_s=10 / tokens_per_s,
        cpu_s_per_token=2 / tokens_per_s,
    )


RESULTS = Results(
    heats=[
        *(heat("sax", 1, rate) for rate in (90, 100, 1000)),
        heat("llama.cpp", 1, 50),
        heat("llama.cpp", 8, 400),
        heat("sax", 8, 7, weights="4 bits"),
    ],
    stays=[
        Stay("sax", "bfloat16", 1, ready_s=12.04, resident_bytes=2_000_000_000),
        Stay("sax", "bfloat16", 8, ready_s=14.0, resident_bytes=1_000_000_000),
        Stay("sax", "bfloat16", 32, ready_s=99.0, resident_bytes=1_000_000_000),
        Stay("llama.cpp", "bfloat16", 1, ready_s=0.3, resident_bytes=500_000_000),
    ],
    absent=[Absence("vllm", "not installed"), Absence("x", "cannot", "4 bits")],
)


def test_a_row_holds_medians_and_a_dash_where_no_heat_was() -> None:
    made = table(RESULTS, "bfloat16", "title", "how", ["short"], [1, 8])
    assert made.rows == [
        ("short", "sax", "100 / -", "100 / -", "20.0 / -", "14.0", "2000"),
        ("short", "llama.cpp", "50 / 400", "200 / 25", "40.0 / 5.0", "0.3", "500"),
    ]
    assert {len(row) for row in made.rows} == {len(made.columns)}


def test_whoever_raced_in_no_format_is_absent_from_every_table() -> None:
    assert RESULTS.absent_from("bfloat16") == ["vllm: not installed"]
    assert RESULTS.absent_from("4 bits") == ["vllm: not installed", "x: cannot"]


def test_the_longest_bar_is_the_fastest_server() -> None:
    drawn = ElementTree.fromstring(draw(RESULTS, 1))
    bars = {
        rect.get("class"): float(rect.get("width", 0))
        for rect in drawn.iter("{http://www.w3.org/2000/svg}rect")
    }
    assert bars["ours"] == 2 * bars["peer"] > 0


@pytest.mark.extended
def test_every_prompt_has_its_tokens_and_shares_no_words_but_those_that_are_to_be_shared() -> None:
    tokenizer = GgufCheckpoint(demo_model()).tokenizer()
    words = one_token_words(tokenizer)
    for workload in WORKLOADS:
        asked = [p for turn in range(2) for p in prompts(words, workload, 2, f"round {turn}")]
        lengths = {len(tokenizer.encode(prompt)) for prompt in asked}
        assert lengths == {workload.prompt}, workload.name
        split = [prompt.split() for prompt in asked]
        assert len({tuple(each[: workload.shared]) for each in split}) == 1, workload.name
        own = {tuple(each[workload.shared :][:16]) for each in split}
        assert len(own) == len(asked) == 4, workload.name


def test_prompts_are_the_same_in_every_race() -> None:
    words = ["one", "two", "three"]
    workload = Workload("", prompt=8, tokens=1, shared=4)
    assert prompts(words, workload, 2, "a") == prompts(words, workload, 2, "a")
    assert prompts(words, workload, 2, "a") != prompts(words, workload, 2, "b")
