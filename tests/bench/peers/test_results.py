"""Medians of heats, the table made of them, and the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from tests.bench.peers.picture import draw
from tests.bench.peers.results import Absence, Heat, Results, Stay, table


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
