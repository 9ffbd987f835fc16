"""sax and other servers in turns on the same weights, prompts and cores.

`make race` runs all that are installed and puts the tables first into docs/reference/benchmarks.md,
with one of what exactness costs products.
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
from tests.tools.bench.peers.in_process import OpenVino, Transformers
from tests.tools.bench.peers.installation import install, installed
from tests.tools.bench.peers.llama_cpp import LlamaCpp
from tests.tools.bench.peers.peer import THREADS, Peer
from tests.tools.bench.peers.picture import PICTURE, draw
from tests.tools.bench.peers.race import Course, race
from tests.tools.bench.peers.results import Absence, Results, table
from tests.tools.bench.peers.sax_cell import Sax
from tests.tools.bench.peers.vllm import Vllm
from tests.tools.bench.peers.weights import FORMATS
from tests.tools.bench.peers.workload import WORKLOADS, one_token_words
from tests.tools.bench.table import Table

_ALL: tuple[Peer, ...] = (
    Sax(),
    Sax(name="sax-guessing", speculation=None),
    LlamaCpp(),
    Vllm(),
    OpenVino(),
    Transformers(),
)
PEERS = {peer.name: peer for peer in _ALL}


def main() -> None:
    flags = _flags()
    if flags.install:
        for name in flags.install:
            install(name, PEERS[name].packages, PEERS[name].unwanted)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no server is left running
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])  # children inherit it
    load = f"{os.getloadavg()[0]:.1f}"
    results = _race(flags)
    tables = [*(_table(results, name, flags, load) for name in flags.formats), price()]
    for each in tables:
        print(each.markdown(), flush=True)
    if flags.page:
        PICTURE.write_text(draw(results, max(flags.streams)))
        made = [each.markdown() for each in tables]
        PAGE.write_text(with_tables(PAGE.read_text(), made, "", first=True))


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench.peers", description=__doc__)
    others = [name for name, peer in PEERS.items() if peer.packages]
    parser.add_argument("--install", nargs="+", choices=others, help="install, and do no more")
    usual = [name for name in PEERS if name != "sax-guessing"]
    parser.add_argument("--peers", nargs="+", choices=[*PEERS], default=usual)
    parser.add_argument("--formats", nargs="+", choices=[*FORMATS], default=[*FORMATS])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
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
    results = Results()
    peers = [PEERS[name] for name in flags.peers]
    racing = [peer for peer in peers if not peer.packages or installed(peer.name)]
    for peer in peers:
        if peer not in racing:
            results.absent.append(Absence(peer.name, "not installed"))
    for name in flags.formats:
        race(racing, FORMATS[name](), course, results)
    return results


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
