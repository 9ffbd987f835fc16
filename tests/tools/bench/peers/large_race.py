"""The race over the shapes of larger models, in fractions of what the machine can do.

A prompt is bound by arithmetic and is given as a fraction of the peak; decode is bound by memory
and is given as a fraction of its speed. Both are measured right before each burst. Only one server
is in memory at a time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import httpx

from tests.tools.bench.arithmetic_speed import gflop_per_s
from tests.tools.bench.memory_speed import read_gb_per_s
from tests.tools.bench.peers.dimensions import Dimensions
from tests.tools.bench.peers.peer import THREADS, Peer, Running
from tests.tools.bench.peers.race import REST_S, burst_of, say, started
from tests.tools.bench.peers.random_weights import random_weights, write_missing
from tests.tools.bench.peers.results import Absence, Results
from tests.tools.bench.peers.weights import Weights
from tests.tools.bench.peers.workload import Workload, prompts
from tests.tools.bench.streams import Burst
from tests.tools.bench.table import Table

MOST_STREAMS = 8
_WARM_TOKENS = 3
# What a peer that does not start, ends early or answers wrongly raises.
_FAILURES = (
    *(RuntimeError, TimeoutError, AssertionError, ValueError),
    *(ConnectionError, httpx.HTTPError),
)


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """What the machine can do in the minute of a burst."""

    gb_per_s: float
    gflop_per_s: dict[str, float]  # by kind of numbers

    @property
    def numbers(self) -> str:
        """The kind that prompts are held against: what weights are multiplied as, if it can."""
        return "bfloat16" if "bfloat16" in self.gflop_per_s else "float32"


@dataclass(frozen=True, slots=True)
class Leg:
    """A part of the course; one token out means that the prompt is what is measured."""

    name: str
    workload: Workload
    streams: int

    @property
    def is_prompt(self) -> bool:
        return self.workload.tokens == 1

    def tokens_per_s(self, burst: Burst) -> float:
        """Tokens of prompts, or of answers after their first, which belongs to the prompt."""
        if self.is_prompt:
            return self.streams * self.workload.prompt / burst.wall_s
        first_s = statistics.median(burst.first_token_s)
        return (burst.tokens - self.streams) / (burst.wall_s - first_s)

    def fraction(
        self, tokens_per_s: float, dimensions: Dimensions, weights: str, speed: MachineSpeed
    ) -> float:
        """Of the peak for prompts, of the speed of memory for answers."""
        if self.is_prompt:
            flop = dimensions.prompt_flop(self.workload.prompt) / self.workload.prompt
            return tokens_per_s * flop / 1e9 / speed.gflop_per_s[speed.numbers]
        read = dimensions.step_bytes(self.streams, weights) / self.streams
        return tokens_per_s * read / 1e9 / speed.gb_per_s


_ANSWER = Workload("16 in, 32 out", 16, 32)
LEGS = (
    Leg("prompt", Workload("512 in, 1 out", 512, 1), 1),
    Leg("decode", _ANSWER, 1),
    Leg("decode", _ANSWER, MOST_STREAMS),
)


@dataclass(frozen=True, slots=True)
class Pace:
    """One burst of one peer."""

    peer: str
    weights: str
    leg: Leg
    tokens_per_s: float
    fraction: float


@dataclass
class LargeResults:
    """What was measured with one model."""

    dimensions: Dimensions
    lives: Results = field(default_factory=Results)  # starts, memory and absences
    paces: list[Pace] = field(default_factory=list)
    speeds: list[MachineSpeed] = field(default_factory=list)

    def peers(self, weights: str) -> list[str]:
        """Those that finished."""
        return list(dict.fromkeys(s.peer for s in self.lives.stays if s.weights == weights))

    def medians(self, peer: str, weights: str, leg: Leg) -> tuple[float, float]:
        """Tokens per second and fraction."""
        found = [p for p in self.paces if (p.peer, p.weights, p.leg) == (peer, weights, leg)]
        return (
            statistics.median(pace.tokens_per_s for pace in found),
            statistics.median(pace.fraction for pace in found),
        )


def machine_speed() -> MachineSpeed:
    """Measure, once the server's threads have stopped looking for work."""
    time.sleep(REST_S)
    return MachineSpeed(read_gb_per_s(THREADS), gflop_per_s(THREADS))


@dataclass(frozen=True)
class LargeCourse:
    """How each peer is run."""

    words: Sequence[str]  # one token each
    rounds: int
    speed: Callable[[], MachineSpeed] = machine_speed
    rest_s: float = REST_S  # before each burst


def large_race(
    peers: Sequence[Peer], dimensions: Dimensions, formats: Sequence[str], course: LargeCourse
) -> LargeResults:
    """Run every peer over all legs, one after the other."""
    results = LargeResults(dimensions)
    course.speed()  # if it cannot be measured, this ends the race
    for weights in chosen_weights(dimensions, formats):
        for peer in peers:
            if refusal := peer.refusal(weights):
                results.lives.absent.append(Absence(peer.name, refusal, weights.name))
                continue
            write_missing(dimensions, peer.file(weights))
            try:
                with started(peer, weights, MOST_STREAMS, results.lives) as running:
                    _run(running, peer.name, weights.name, course, results)
            except _FAILURES as error:  # the others race on
                say(f"{peer.name}: {error!r}")
                reason = "did not start, or did not finish"
                results.lives.absent.append(Absence(peer.name, reason, weights.name))
    return results


def chosen_weights(dimensions: Dimensions, formats: Sequence[str]) -> list[Weights]:
    names = {"bf16": "bfloat16", "4bit": "4-bit"}
    chosen = {names[each] for each in formats}
    return [each for each in random_weights(dimensions) if each.name in chosen]


def _run(
    running: Running,
    peer: str,
    weights: str,
    course: LargeCourse,
    results: LargeResults,
) -> None:
    """All legs; the first, uncounted round makes few tokens, in the shapes of the others."""
    for turn in range(course.rounds + 1):
        for leg in LEGS:
            asked = prompts(course.words, leg.workload, leg.streams, f"{leg.name}, round {turn}")
            tokens = leg.workload.tokens if turn else min(leg.workload.tokens, _WARM_TOKENS)
            speed = course.speed() if turn else None
            burst, _ = burst_of(running, asked, tokens, course.rest_s)
            if burst.tokens != leg.streams * tokens:
                raise RuntimeError(f"{burst.tokens} tokens, not {leg.streams * tokens}")
            if speed is not None:
                rate = leg.tokens_per_s(burst)
                fraction = leg.fraction(rate, results.dimensions, weights, speed)
                say(f"  {peer}, {leg.name}, {leg.streams}: {rate:.1f} tokens/s, {fraction:.0%}")
                results.paces.append(Pace(peer, weights, leg, rate, fraction))
                results.speeds.append(speed)


# --- Table


def large_table(
    all_results: Sequence[LargeResults], formats: Sequence[str], title: str, how: Sequence[str]
) -> Table:
    """A row per model, format and peer."""
    counts = " / ".join(str(leg.streams) for leg in LEGS[1:])
    columns = (
        *("model", "server", "prompt tokens/s", "of the peak"),
        *(f"decode tokens/s at {counts} streams", f"of memory's speed at {counts}"),
        *("start s", "memory MB"),
    )
    made = Table(title, "\n\n".join([*how, *notes(all_results)]), columns)
    for results in all_results:
        for weights in chosen_weights(results.dimensions, formats):
            model = f"{results.dimensions.title}, {weights.name}"
            for peer in results.peers(weights.name):
                made.add(model, peer, *_cells(results, peer, weights.name))
    return made


def _cells(results: LargeResults, peer: str, weights: str) -> tuple[str, ...]:
    prompt, *decodes = (results.medians(peer, weights, leg) for leg in LEGS)
    return (
        f"{prompt[0]:.0f}",
        f"{prompt[1]:.0%}",
        " / ".join(f"{rate:.1f}" for rate, _ in decodes),
        " / ".join(f"{fraction:.0%}" for _, fraction in decodes),
        f"{results.lives.ready_s(peer, weights):.1f}",
        f"{results.lives.resident_bytes(peer, weights) / 1e6:.0f}",
    )


def notes(all_results: Sequence[LargeResults]) -> list[str]:
    """What the fractions are of, and who is not in the table."""
    speeds = [speed for results in all_results for speed in results.speeds]
    absent = dict.fromkeys(
        f"{a.peer} ({results.dimensions.title}, {a.weights}): {a.reason}"
        if a.weights
        else f"{a.peer}: {a.reason}"
        for results in all_results
        for a in results.lives.absent
    )
    return [
        *([_machine_note(speeds)] if speeds else []),
        "; ".join(_size_note(results.dimensions) for results in all_results) + ".",
        *([f"Not in this table: {'; '.join(absent)}."] if absent else []),
    ]


def _machine_note(speeds: Sequence[MachineSpeed]) -> str:
    kinds = dict.fromkeys(kind for speed in speeds for kind in speed.gflop_per_s)
    peaks = (f"{_span(s.gflop_per_s[kind] for s in speeds)} of {kind}" for kind in kinds)
    return (
        f"{THREADS} threads read {_span(s.gb_per_s for s in speeds)} GB/s of memory and computed "
        f"{', '.join(peaks)} in billions of operations a second, lowest to highest of all bursts; "
        f"each fraction is of what was measured right before its burst, prompts' of "
        f"{speeds[0].numbers}."
    )


def _span(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{found[0]:.0f} to {found[-1]:.0f}"


def _size_note(dimensions: Dimensions) -> str:
    read = dimensions.step_bytes(1, "bfloat16") / 1e9
    return (
        f"{dimensions.title}: {dimensions.parameters / 1e9:.2f} billion parameters, "
        f"{read:.2f} GB of bfloat16 read for a token"
    )
