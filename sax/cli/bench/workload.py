"""Workloads: the requests of a benchmark, the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

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
