"""The race: every peer answers the same bursts, in turns, while the others idle."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from tests.processes import resident
from tests.tools.bench.cpu_time import cpu_s, trees
from tests.tools.bench.peers.peer import Peer, Running
from tests.tools.bench.peers.results import Absence, Heat, Results, Stay
from tests.tools.bench.peers.weights import Weights
from tests.tools.bench.peers.workload import Workload, prompts
from tests.tools.bench.streams import Burst

REST_S = 0.5  # threads of whoever answered last still look for work


@dataclass(frozen=True)
class Course:
    """What is raced over."""

    words: Sequence[str]  # one token each
    workloads: Sequence[Workload]
    streams: Sequence[int]
    rounds: int


def race(peers: Sequence[Peer], weights: Weights, course: Course, results: Results) -> None:
    """Run every peer that takes these weights over the course; adds to `results`."""
    racing = [peer for peer in peers if not peer.refusal(weights)]
    results.absent += [
        Absence(peer.name, peer.refusal(weights), weights.name)
        for peer in peers
        if peer not in racing
    ]
    for streams in course.streams:
        with ExitStack() as stack:
            runners: dict[str, Running] = {}
            for peer in racing:
                try:
                    runner = stack.enter_context(started(peer, weights, streams, results))
                except (RuntimeError, TimeoutError) as error:  # the others race on
                    say(str(error))
                    reason = f"did not start for {streams} streams"
                    results.absent.append(Absence(peer.name, reason, weights.name))
                else:
                    runners[peer.name] = runner
            for workload in course.workloads:
                _heats(runners, weights, workload, streams, course, results)


@contextmanager
def started(peer: Peer, weights: Weights, streams: int, results: Results) -> Iterator[Running]:
    began_s = time.monotonic()
    running = peer.start(weights, streams)
    ready_s = time.monotonic() - began_s
    say(f"{peer.name}, {weights.name}, {streams} streams: ready in {ready_s:.1f} s")
    try:
        yield running
        held = sum(map(resident, trees(running.pids())))
        results.stays.append(Stay(peer.name, weights.name, streams, ready_s, held))
    finally:
        running.close()


def _heats(
    runners: dict[str, Running],
    weights: Weights,
    workload: Workload,
    streams: int,
    course: Course,
    results: Results,
) -> None:
    """All rounds of one workload; the first, uncounted, warms caches and leaves the shared part."""
    for turn in range(course.rounds + 1):
        asked = prompts(course.words, workload, streams, f"round {turn}")
        names = list(runners)[:: 1 if turn % 2 else -1]
        for name in names:
            burst, spent_s = burst_of(runners[name], asked, workload.tokens)
            expected = streams * workload.tokens
            if burst.tokens != expected:
                raise RuntimeError(f"{name} gave {burst.tokens} tokens, not {expected}")
            if turn:
                heat = _heat(name, weights, workload, streams, burst, spent_s)
                say(f"  {heat}")
                results.heats.append(heat)


def burst_of(
    running: Running, asked: Sequence[str], tokens: int, rest_s: float = REST_S
) -> tuple[Burst, float]:
    """The burst, and the CPU seconds of the peer's processes."""
    time.sleep(rest_s)
    before_s = _spent_s(trees(running.pids()))
    burst = running.answer(asked, tokens)
    after_s = _spent_s(before_s)
    return burst, sum(spent - before_s[pid] for pid, spent in after_s.items())


def _spent_s(pids: Iterable[int]) -> dict[int, float]:
    """CPU seconds so far of each that still runs: a peer may end its helpers at any time."""
    found: dict[int, float] = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = cpu_s(pid)
    return found


def _heat(
    name: str, weights: Weights, workload: Workload, streams: int, burst: Burst, spent_s: float
) -> Heat:
    return Heat(
        peer=name,
        weights=weights.name,
        workload=workload.name,
        streams=streams,
        tokens_per_s=burst.tokens / burst.wall_s,
        first_token_s=statistics.median(burst.first_token_s),
        cpu_s_per_token=spent_s / burst.tokens,
    )


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
