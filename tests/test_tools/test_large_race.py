"""The race over larger models: sizes, fractions of the machine, who finishes, kept tables."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from tests.tools.bench.arithmetic_speed import fastest, gflop_per_s
from tests.tools.bench.page import tables_of_their_own, with_tables
from tests.tools.bench.peers.dimensions import QWEN3_0_6B, QWEN3_4B, QWEN3_30B_A3B, Dimensions
from tests.tools.bench.peers.large_race import (
    LEGS,
    LargeCourse,
    LargeResults,
    MachineSpeed,
    large_race,
    large_table,
)
from tests.tools.bench.peers.random_weights import random_weights, write_missing
from tests.tools.bench.peers.weights import Weights
from tests.tools.bench.streams import Burst

PROMPT, DECODE, STREAMS = LEGS
SPEED = MachineSpeed(10.0, {"float32": 100.0, "bfloat16": 200.0})


@pytest.mark.parametrize(
    ("published", "parameters", "used"),
    [(QWEN3_0_6B, 0.596e9, 0.596e9), (QWEN3_4B, 4.02e9, 4.02e9), (QWEN3_30B_A3B, 30.5e9, 3.04e9)],
)
def test_sizes_are_those_that_were_published(
    published: Dimensions, parameters: float, used: float
) -> None:
    assert published.parameters == pytest.approx(parameters, rel=2e-3)
    assert published.prompt_flop(1) / 2 == pytest.approx(used, rel=2e-3)
    matrices = (math.prod(shape) for shape in published.tensors().values() if len(shape) > 1)
    assert sum(matrices) == published.parameters
    assert published.step_bytes(1, "bfloat16") == pytest.approx(2 * used, rel=2e-3)


def test_a_cut_model_says_so_and_a_prompt_computes_its_head_once() -> None:
    cut = QWEN3_4B.cut(4)
    assert (QWEN3_4B.title, cut.title) == ("Qwen3-4B", "Qwen3-4B, 4 of 36 layers")
    assert cut.cut(2).title == "Qwen3-4B, 2 of 36 layers"
    assert cut.parameters < QWEN3_4B.parameters / 3
    head = cut.vocabulary * cut.width
    assert cut.prompt_flop(512) == 2 * (512 * (cut.parameters - head) + head)


def test_more_streams_reach_more_experts_and_never_more_than_there_are() -> None:
    assert QWEN3_4B.experts_read(8) == 1
    reached = [QWEN3_30B_A3B.experts_read(tokens) for tokens in (1, 8, 1000)]
    assert reached == [pytest.approx(8), pytest.approx(51.6, abs=0.05), pytest.approx(128)]


def test_fractions_are_of_the_speed_measured_with_the_burst() -> None:
    prompt = Burst(tokens=1, wall_s=4.0, first_token_s=(4.0,))
    rate = PROMPT.tokens_per_s(prompt)
    assert rate == 512 / 4
    flop_per_s = QWEN3_0_6B.prompt_flop(512) / 4
    assert PROMPT.fraction(rate, QWEN3_0_6B, "4-bit", SPEED) == pytest.approx(flop_per_s / 200e9)

    answers = Burst(tokens=8 * 32, wall_s=5.0, first_token_s=(1.0,) * 8)
    rate = STREAMS.tokens_per_s(answers)
    assert rate == 8 * 31 / 4  # the first token of each is the prompt's
    bytes_per_s = QWEN3_0_6B.step_bytes(8, "4-bit") * 31 / 4
    fraction = STREAMS.fraction(rate, QWEN3_0_6B, "4-bit", SPEED)
    assert fraction == pytest.approx(bytes_per_s / 10e9)
    twice_as_fast = MachineSpeed(20.0, SPEED.gflop_per_s)
    half = STREAMS.fraction(rate, QWEN3_0_6B, "4-bit", twice_as_fast)
    assert half == pytest.approx(fraction / 2)
    assert MachineSpeed(1.0, {"float32": 1.0}).numbers == "float32"


def test_the_fastest_unit_for_a_kind_of_numbers_counts() -> None:
    assert fastest("float32 1.5\nbfloat16 3.0\nbfloat16 9.0\nbfloat16 4\n") == {
        "float32": 1.5,
        "bfloat16": 9.0,
    }


@pytest.mark.extended
def test_this_machine_multiplies_float32() -> None:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    assert gflop_per_s(1)["float32"] > 0


@dataclass
class TimedPeer:
    """A peer whose bursts take as long as it says."""

    name: str
    path: Path
    wall_s: float = 2.0
    refused: str = ""
    short_by: int = 0  # tokens
    way: str = "here"
    packages: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    running: int = 0

    def refusal(self, weights: Weights) -> str:
        return self.refused

    def file(self, weights: Weights) -> Path:
        return self.path

    def start(self, weights: Weights, streams: int) -> TimedPeer:
        self.running += 1
        return self

    def answer(self, prompts: Sequence[str], tokens: int) -> Burst:
        count = len(prompts) * tokens - self.short_by
        return Burst(count, self.wall_s, (1.0,) * len(prompts))

    def pids(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        self.running -= 1


@pytest.fixture
def raced(tmp_path: Path) -> tuple[LargeResults, list[TimedPeer]]:
    peers = [
        TimedPeer("whole", tmp_path),
        TimedPeer("short", tmp_path, short_by=1),
        TimedPeer("other", tmp_path, refused="reads no such files"),
    ]
    course = LargeCourse(["one", "two"], rounds=2, speed=lambda: SPEED, rest_s=0)
    return large_race(peers, QWEN3_0_6B, ["4bit"], course), peers


def test_only_who_answers_in_full_is_in_the_table_and_others_are_named(
    raced: tuple[LargeResults, list[TimedPeer]],
) -> None:
    results, peers = raced
    assert [peer.running for peer in peers] == [0, 0, 0]
    assert [pace.peer for pace in results.paces] == ["whole"] * 2 * len(LEGS)
    made = large_table([results], ["4bit"], "title", ["how"])
    memory = QWEN3_0_6B.step_bytes(1, "4-bit") * 31 / 10e9
    peak = QWEN3_0_6B.prompt_flop(512) / 2 / 200e9
    assert [row[:6] for row in made.rows] == [
        ("Qwen3-0.6B, 4-bit", "whole", "256", f"{peak:.0%}", "31.0 / 248.0",
         f"{memory:.0%} / {memory:.0%}"),
    ]  # fmt: skip
    assert len(made.columns) == len(made.rows[0])
    assert "short (Qwen3-0.6B, 4-bit): did not start, or did not finish" in made.how
    assert "other (Qwen3-0.6B, 4-bit): reads no such files" in made.how
    assert "10 to 10 GB/s" in made.how
    assert "200 to 200 of bfloat16" in made.how


def test_a_machine_of_another_type_keeps_its_table(
    raced: tuple[LargeResults, list[TimedPeer]],
) -> None:
    results, _ = raced

    def table(instructions: str, machine: str) -> str:
        title = f"Beside other servers: larger models, {instructions}"
        return large_table([results], ["4bit"], title, [f"Machine: {machine}."]).markdown()

    page = "# Head\n\nMachine: first.\n"
    for instructions, machine in [("amx", "old"), ("avx2", "second"), ("amx", "new")]:
        page = with_tables(page, [table(instructions, machine)], "", first=True)
    assert page.count("## Beside") == 2
    assert "Machine: second." in page
    assert "Machine: new." in page
    assert "Machine: old." not in page
    assert len(tables_of_their_own(page)) == 2  # which `make bench` keeps


SMALL = Dimensions(
    "Small", 2, 64, heads=4, kv_heads=2, inner=96, head_dim=32, vocabulary=49_408,
    experts=4, experts_per_token=2, tied=False,
)  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("experts", [0, 4])
def test_a_written_file_holds_the_tensors_whose_bytes_are_counted(
    tmp_path: Path, experts: int
) -> None:
    small = Dimensions(**{
        **{name: getattr(SMALL, name) for name in SMALL.__slots__},
        "experts": experts, "tied": not experts,
    })  # fmt: skip
    path = tmp_path / random_weights(small)[1].gguf.name
    write_missing(small, path)
    with closing(GgufCheckpoint(path)) as written:
        assert {name: written.shape(name) for name in written.names()} == small.tensors()
        wanted = {key: small.config[key] for key in ("model_type", "head_dim", "hidden_size")}
        assert {key: written.config[key] for key in wanted} == wanted
        table = written.read("model.embed_tokens.weight")
        known, missing = abs(table[:49_152]).mean(), abs(table[49_152:]).mean()
        assert 0.2 < missing / known < 0.3
        routers = 2 * experts * small.width  # float32 in every file
    counted = small.parameters * 4.5 / 8 + routers * (32 - 4.5) / 8
    text = 2_500_000  # of the tokenizer, and the norms
    assert counted < path.stat().st_size < counted + text
