"""The plan of a load: which requests, when and how many at once; the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from sax.errors import InvalidRequest
from sax.format import quoted

# Traces: requests that were recorded, one JSON object a line, to be sent again in their rhythm.
#
# {"timestamp": 0, "input_length": 6500, "output_length": 300, "hash_ids": [46, 47]}
#
# `timestamp` is in milliseconds. Prompts that begin with the same `hash_ids` have those blocks of
# 512 tokens in common: the format of Mooncake's published traces. A line may have its `prompt`
# itself instead of `input_length`.

BLOCK = 512  # tokens that one of `hash_ids` stands for
_MOST = 1 << 24  # tokens of a line
# After a space each is one token of the usual vocabularies of English (BPE and SentencePiece), so
# that a prompt has about as many tokens as words; what a server counts is in the report.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member law "
    "car city community name president team minute idea kid body information back parent face "
    "others level office door health person art war history party result change reason research "
    "girl moment air teacher force education good new first last long great little own other old "
    "big high small large next early young few public same able red blue green white black short "
    "clear close open free full half late low near past poor real ready safe simple single strong "
    "true warm wrong"
)
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send."""

    prompt: str
    tokens: int  # of its answer
    at_s: float | None = None  # after the start; None: as soon as one of the streams is free


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSizes:
    """Sizes of prompts and answers, in tokens."""

    prompt: int = 128  # of a prompt's own part
    tokens: int = 64  # of an answer
    shared: int = 0  # that a prompt begins with and has in common with others
    prefixes: int = 1  # different beginnings, each as likely
    spread: float = 0.0  # own parts and answers are this share shorter or longer, evenly


def planned(count: int, sizes: RequestSizes, seed: int) -> list[PlannedRequest]:
    """Draw requests; the first ones stay the same when there are more of them."""
    return [_draw(sizes, seed, number) for number in range(count)]


def _draw(sizes: RequestSizes, seed: int, number: int) -> PlannedRequest:
    rng = random.Random(f"{seed}, {number}")
    own, tokens = (_spread(size, sizes.spread, rng) for size in (sizes.prompt, sizes.tokens))
    prefix = rng.randrange(sizes.prefixes)
    words = [*drawn(WORDS, sizes.shared, f"{seed}, prefix {prefix}"), *rng.choices(WORDS, k=own)]
    return PlannedRequest(" ".join(words), tokens)


def _spread(size: int, spread: float, rng: random.Random) -> int:
    return rng.randint(max(1, round(size * (1 - spread))), max(1, round(size * (1 + spread))))


def drawn(words: Sequence[str], count: int, key: str) -> list[str]:
    """Draw words: the same ones for the same key."""
    return random.Random(key).choices(words, k=count)


def poisson(requests: Sequence[PlannedRequest], rate: float, seed: int) -> list[PlannedRequest]:
    """Send `rate` requests per second on average, at times that do not depend on each other."""
    rng = random.Random(f"{seed}, arrivals")
    times = accumulate(rng.expovariate(rate) for _ in requests)
    return [replace(each, at_s=at_s) for each, at_s in zip(requests, times, strict=True)]


class TraceLine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One recorded request."""

    timestamp: float
    output_length: int
    input_length: int | None = None
    prompt: str | None = None
    hash_ids: list[int] = []


def read_trace(lines: Iterable[str | bytes], seed: int, speed: float = 1.0) -> list[PlannedRequest]:
    """Read the requests of a trace, sent `speed` times as fast as they were recorded.

    The first is sent at once. Raises InvalidRequest, which names the line.
    """
    found = [_line(text, number) for number, text in enumerate(lines, 1) if text.strip()]
    if not found:
        raise InvalidRequest("the trace has no lines", param="trace")
    begin = min(each.timestamp for each in found)
    made = [
        PlannedRequest(
            _prompt(each, seed, number), each.output_length, (each.timestamp - begin) / 1e3 / speed
        )
        for number, each in enumerate(found)
    ]
    return sorted(made, key=lambda request: request.at_s or 0.0)


def _line(text: str | bytes, number: int) -> TraceLine:
    try:
        line = msgspec.json.decode(text, type=TraceLine)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"line {number} of the trace: {error}", param="trace") from None
    if wrong := _wrong(line):
        raise InvalidRequest(f"line {number} of the trace: {wrong}", param="trace")
    return line


def _wrong(line: TraceLine) -> str:
    if (line.input_length is None) == (line.prompt is None):
        return "give input_length or prompt, one of them"
    if line.prompt is not None and line.hash_ids:
        return "hash_ids stand for a prompt that is not given"
    if not 1 <= line.output_length <= _MOST:
        return f"output_length is {line.output_length}: give 1 to {_MOST}"
    if line.input_length is not None and not 1 <= line.input_length <= _MOST:
        return f"input_length is {line.input_length}: give 1 to {_MOST}"
    return ""


def _prompt(line: TraceLine, seed: int, number: int) -> str:
    if line.prompt is not None:
        return line.prompt
    length = line.input_length or 0
    words = _blocks(line.hash_ids, length, seed)
    return " ".join([*words, *drawn(WORDS, length - len(words), f"{seed}, {number}")])


def _blocks(ids: Sequence[int], length: int, seed: int) -> list[str]:
    needed = ids[: -(-length // BLOCK)]
    words = [word for each in needed for word in drawn(WORDS, BLOCK, f"{seed}, block {each}")]
    return words[:length]


_REQUESTS = 64
_AT_ONCE = 8


class WorkloadKind(StrEnum):
    """Requests that `sax bench` can make."""

    RANDOM = "random"
    SHARED_PREFIX = "shared-prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The load that a command line asks for."""

    kind: WorkloadKind = WorkloadKind.RANDOM
    sizes: RequestSizes = RequestSizes()
    count: int | None = None
    rate: float | None = None
    at_once: int | None = None
    seed: int = 0
    trace: Path | None = None
    speed: float = 1.0

    @property
    def concurrency(self) -> int | None:
        """Requests at once; None: as many as come, each at its time."""
        timed = self.rate is not None or self.trace is not None
        return self.at_once if self.at_once is not None or timed else _AT_ONCE

    def requests(self) -> Sequence[PlannedRequest]:
        """Make the requests. Raises InvalidRequest for a trace that cannot be read."""
        if self.trace is None:
            made = planned(self.count or _REQUESTS, self._sizes, self.seed)
            return made if self.rate is None else poisson(made, self.rate, self.seed)
        if self.rate is not None:
            raise InvalidRequest(
                "a trace has its own times: give --speed, not --rate", param="rate"
            )
        try:
            with self.trace.open("rb") as lines:
                return read_trace(lines, self.seed, self.speed)[: self.count]
        except OSError as error:
            told = f"the trace {quoted(str(self.trace))} cannot be read: {error.strerror}"
            raise InvalidRequest(told, param="trace") from None

    def as_value(self) -> dict[str, Any]:
        """The plan as the report tells it."""
        if self.trace is not None:
            told: dict[str, Any] = {"trace": str(self.trace), "speed": self.speed}
        else:
            told = {"kind": str(self.kind), **asdict(self._sizes), "rate": self.rate}
        return {**told, "concurrency": self.concurrency, "seed": self.seed}

    @property
    def text(self) -> str:
        """The plan in a line."""
        if self.trace is not None:
            return f"trace {self.trace.name} at {self.speed:g} times its speed"
        sizes = self._sizes
        shared = f"{sizes.shared} shared + " if sizes.shared else ""
        pace = f"{self.rate:g} requests/s" if self.rate else f"{self.concurrency} at once"
        return f"{shared}{sizes.prompt} in, {sizes.tokens} out, {pace}, seed {self.seed}"

    @property
    def _sizes(self) -> RequestSizes:
        if self.kind is WorkloadKind.SHARED_PREFIX:
            return self.sizes
        own = self.sizes
        return RequestSizes(prompt=own.prompt, tokens=own.tokens, spread=own.spread)
