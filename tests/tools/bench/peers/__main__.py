"""sax and other servers in turns on the same weights, prompts and cores.

`make race` runs all that are installed and puts the tables first into docs/reference/benchmarks.md,
with one of what exactness costs products. The demo model is raced by all servers in turns, larger
ones with random weights by one server at a time (`--models`; `--write` only writes their files).
`python -m tests.tools.bench.peers --install llama.cpp` installs one, into .cache/peers.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from tests.demo_model import demo_model
from tests.tools.bench.bench_exactness import price
from tests.tools.bench.page import PAGE, instructions, machine, with_tables
from tests.tools.bench.peers.dimensions import LARGE, Dimensions
from tests.tools.bench.peers.in_process import OpenVino, Transformers
from tests.tools.bench.peers.installation import install, installed
from tests.tools.bench.peers.large_race import (
    LEGS,
    LargeCourse,
    LargeResults,
    chosen_weights,
    large_race,
    large_table,
)
from tests.tools.bench.peers.llama_cpp import LlamaCpp
from tests.tools.bench.peers.peer import THREADS, Peer
from tests.tools.bench.peers.picture import PICTURE, draw
from tests.tools.bench.peers.race import Course, race
from tests.tools.bench.peers.random_weights import write_missing
from tests.tools.bench.peers.results import Absence, Results, table
from tests.tools.bench.peers.sax_cell import Sax
from tests.tools.bench.peers.vllm import Vllm
from tests.tools.bench.peers.weights import FORMATS
from tests.tools.bench.peers.workload import WORKLOADS, one_token_words
from tests.tools.bench.table import Table

_ALL: tuple[Peer, ...] = (
    Sax(),
    Sax(
        name="sax-int8",
        activations="int8",
        way='HTTP, through the gateway; `ACTIVATIONS="int8"`: one int8 of each activation, not two',
    ),
    Sax(name="sax-guessing", speculation=None),
    LlamaCpp(),
    Vllm(),
    OpenVino(),
    Transformers(),
)
PEERS = {peer.name: peer for peer in _ALL}
_DEMO = "smollm2"


def main() -> None:
    flags = _flags()
    if flags.install:
        for name in flags.install:
            install(name, PEERS[name].packages, PEERS[name].unwanted)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no server is left running
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])  # children inherit it
    load = f"{os.getloadavg()[0]:.1f}"
    if flags.write:
        _write(flags)
        return
    tables: list[Table] = []
    if _DEMO in flags.models:
        results = _race(flags)
        tables += [*(_table(results, name, flags, load) for name in flags.formats), price()]
        if flags.page:
            PICTURE.write_text(draw(results, max(flags.streams)))
    if large := [_large_race(name, flags) for name in flags.models if name != _DEMO]:
        tables.append(_large_table(large, flags, load))
    for each in tables:
        print(each.markdown(), flush=True)
    if flags.page:
        made = [each.markdown() for each in tables]
        PAGE.write_text(with_tables(PAGE.read_text(), made, "", first=True))


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.peers", description=__doc__)
    others = [name for name, peer in PEERS.items() if peer.packages]
    parser.add_argument("--install", nargs="+", choices=others, help="install, and do no more")
    usual = [name for name in PEERS if name != "sax-guessing"]
    parser.add_argument("--peers", nargs="+", choices=[*PEERS], default=usual)
    parser.add_argument("--formats", nargs="+", choices=[*FORMATS], default=[*FORMATS])
    models = [_DEMO, *LARGE]
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    parser.add_argument("--write", action="store_true", help="write weights, and do no more")
    parser.add_argument("--layers", type=int, help="of the larger models, at most: for a try")
    parser.add_argument(
        "--streams", nargs="+", type=int, default=[1, 8, 32], help="of the demo model's race"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of the demo model's race")
    parser.add_argument("--large-rounds", type=int, default=2, help="of the larger models'")
    places = range(len(WORKLOADS))
    names = ", ".join(f"{place}: {WORKLOADS[place].name}" for place in places)
    parser.add_argument(
        "--workloads", nargs="+", type=int, choices=places, default=[*places], help=names
    )
    parser.add_argument("--page", action="store_true", help="put tables and picture into docs/")
    return parser.parse_args()


def _race(flags: argparse.Namespace) -> Results:
    course = Course(
        words=one_token_words(GgufCheckpoint(demo_model()).tokenizer()),
        workloads=[WORKLOADS[place] for place in flags.workloads],
        streams=flags.streams,
        rounds=flags.rounds,
    )
    racing, absent = _racing(flags)
    results = Results(absent=absent)
    for name in flags.formats:
        race(racing, FORMATS[name](), course, results)
    return results


def _racing(flags: argparse.Namespace) -> tuple[list[Peer], list[Absence]]:
    peers: list[Peer] = [PEERS[name] for name in flags.peers]
    racing = [peer for peer in peers if not peer.packages or installed(peer.name)]
    return racing, [Absence(p.name, "not installed") for p in peers if p not in racing]


def _dimensions(name: str, flags: argparse.Namespace) -> Dimensions:
    return LARGE[name].cut(flags.layers) if flags.layers else LARGE[name]


def _write(flags: argparse.Namespace) -> None:
    """Write the files that the chosen peers read of the larger models."""
    for name in flags.models:
        if name == _DEMO:
            continue
        dimensions = _dimensions(name, flags)
        for weights in chosen_weights(dimensions, flags.formats):
            for peer in _racing(flags)[0]:
                if not peer.refusal(weights):
                    write_missing(dimensions, peer.file(weights))


def _large_race(name: str, flags: argparse.Namespace) -> LargeResults:
    words = one_token_words(GgufCheckpoint(demo_model()).tokenizer())
    racing, absent = _racing(flags)
    dimensions = _dimensions(name, flags)
    course = LargeCourse(words, flags.large_rounds)
    results = large_race(racing, dimensions, flags.formats, course)
    results.lives.absent += absent
    return results


def _large_table(large: list[LargeResults], flags: argparse.Namespace, load: str) -> Table:
    prompt, decode, streams = LEGS
    how = [
        "Random weights in the shapes of published models, vocabularies included, the same for all "
        "(4 bits: Q4_0), greedy, streamed. Servers and client share "
        f"{THREADS} cores; one server at a time, medians of {flags.large_rounds} closed bursts "
        f"after one that is not counted. Prompt: {prompt.workload.name}, one stream; operations "
        "are two for each weight that a token is multiplied with, attention is not counted. "
        f"Decode: {decode.workload.name}, {decode.streams} and {streams.streams} streams, from the "
        "first token on; read are the weights of a step, keys and values are not counted, and of "
        "the experts as many as tokens that choose at random reach. Memory is that of all "
        "processes of a server (`make race`).",
        f"How they are asked: {_ways(large)}.",
        f"{machine().strip()} Load average before the race: {load}.",
    ]
    title = f"Beside other servers: larger models, {instructions()}"
    return large_table(large, flags.formats, title, how)


def _ways(large: list[LargeResults]) -> str:
    raced = dict.fromkeys(s.peer for results in large for s in results.lives.stays)
    return "; ".join(f"{name}: {PEERS[name].way}" for name in raced)


def _table(results: Results, key: str, flags: argparse.Namespace, load: str) -> Table:
    weights = FORMATS[key]().name
    ways = "; ".join(f"{name}: {PEERS[name].way}" for name in results.peers(weights))
    absent = "; ".join(results.absent_from(weights))
    how = [
        f"SmolLM2-135M-Instruct, the same {weights} weights and prompts for all, greedy, streamed, "
        f"exactly as many tokens as asked for. Servers and client share {THREADS} cores; medians "
        f"of {flags.rounds} closed bursts, the servers in turns, after one that is not counted. "
        "CPU time and memory are those of all processes of a server, its start the median of "
        f"{len(flags.streams)} until it answers (`make race`).",
        f"How they are asked: {ways}.",
        *([f"Not in this table: {absent}."] if absent else []),
        f"{machine().strip()} Load average before the race: {load}.",
        *(["![Tokens per second](../pictures/race.svg)"] if flags.page and key == "bf16" else []),
    ]
    names = [WORKLOADS[place].name for place in flags.workloads]
    title = f"Beside other servers: {weights} weights, {instructions()}"
    return table(results, weights, title, "\n\n".join(how), names, flags.streams)


if __name__ == "__main__":
    main()
