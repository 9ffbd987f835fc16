"""Replicas with a prefix cache behind gateways that choose among them, in simulated time.

A replica computes prompts one after the other, a millisecond for each 64 bytes that it does not
have, and answers beside each other, each in two seconds. It keeps the blocks used last, as a
prefix cache does. A gateway knows its own requests only.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sax.client.routing import NO_WISH, RecentReplicas, ServerLoad, choose, prefix_affinity

BLOCK = 64  # characters
_BLOCK_S = 0.001
_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    at_s: float
    prompt: str


class Replica:
    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._free_s = 0.0  # when the prompts that it has are computed
        self.requests = 0

    def ask(self, prompt: str, now: float) -> tuple[int, float]:
        """Return the characters found in the cache, and when the prompt is computed."""
        chain, keys = 0, list[int]()
        for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
            chain = hash((chain, prompt[start : start + BLOCK]))
            keys.append(chain)
        found = next((i for i, key in enumerate(keys) if key not in self._cache), len(keys))
        for key in keys:
            self._cache[key] = None
            self._cache.move_to_end(key)
        while len(self._cache) > self._most:
            self._cache.popitem(last=False)
        self.requests += 1
        self._free_s = max(self._free_s, now) + _BLOCK_S * (len(keys) - found)
        return BLOCK * found, self._free_s


class Gateway:
    def __init__(self, replicas: Iterable[str], affinity: bool) -> None:
        self.outstanding = dict.fromkeys(replicas, 0)
        self._recent = RecentReplicas()
        self._affinity = affinity

    def choose(self, prompt: str, now: float) -> str:
        affinity = prefix_affinity("model", prompt)
        wish = self._recent.wish(affinity, self.outstanding, now) if self._affinity else NO_WISH
        loads = {name: ServerLoad(False, count) for name, count in self.outstanding.items()}
        address = choose(loads, (), wish=wish)
        assert address is not None
        self._recent.remember(affinity, address, now)
        return address


@dataclass(frozen=True, slots=True)
class Outcome:
    hit_rate: float  # of the prompts' characters
    imbalance: float  # requests of the busiest replica by those of the average one
    first_token_s: float  # mean
    slowest_s: float  # 99th percentile of the same


def simulate(
    asked: Iterable[Asked],
    *,
    affinity: bool,
    replicas: int = 4,
    gateways: int = 1,
    blocks: int = 4096,
    seed: int = 0,
) -> Outcome:
    random.seed(seed)  # of ties, too
    servers = {f"10.0.0.{i}:10000": Replica(blocks) for i in range(replicas)}
    fronts = [Gateway(servers, affinity) for _ in range(gateways)]
    ends: list[tuple[float, int, str]] = []
    waits: list[float] = []
    found = size = 0
    for each in asked:
        while ends and ends[0][0] <= each.at_s:
            _, front, address = heapq.heappop(ends)
            fronts[front].outstanding[address] -= 1
        front = random.randrange(gateways)
        address = fronts[front].choose(each.prompt, each.at_s)
        hit, computed_s = servers[address].ask(each.prompt, each.at_s)
        fronts[front].outstanding[address] += 1
        heapq.heappush(ends, (computed_s + _ANSWER_S, front, address))
        waits.append(computed_s - each.at_s)
        found, size = found + hit, size + len(each.prompt)
    counts = [server.requests for server in servers.values()]
    return Outcome(
        found / size,
        max(counts) / statistics.fmean(counts),
        statistics.fmean(waits),
        statistics.quantiles(waits, n=100)[-1],
    )


def text(draw: random.Random, size: int) -> str:
    return "".join(draw.choices("abcdefghijklmnop", k=size))


def chats(seed: int = 0, people: int = 120, turns: int = 8, per_s: float = 12.0) -> list[Asked]:
    """Chats with one system prompt: each turn sends all turns before it."""
    draw = random.Random(seed)
    system = text(draw, 1500)
    so_far = [system + text(draw, 200) for _ in range(people)]
    left = dict.fromkeys(range(people), turns)
    asked: list[Asked] = []
    for at_s in _arrivals(draw, per_s, people * turns):
        person = draw.choice(list(left))
        asked.append(Asked(at_s, so_far[person]))
        so_far[person] += text(draw, draw.randrange(200, 1200))
        left[person] -= 1
        if not left[person]:
            del left[person]
    return asked


def documents(seed: int = 0, count: int = 24, questions: int = 40) -> list[Asked]:
    """Questions about long documents, some of which are asked about far more than others."""
    draw = random.Random(seed)
    texts = [text(draw, 16_000) for _ in range(count)]
    weights = [1 / (1 + i) for i in range(count)]
    arrivals = _arrivals(draw, 8.0, count * questions)
    return [Asked(at_s, draw.choices(texts, weights)[0] + text(draw, 300)) for at_s in arrivals]


def strangers(seed: int = 0, count: int = 1000) -> list[Asked]:
    """Prompts that have only a short system prompt in common."""
    draw = random.Random(seed)
    system = text(draw, 400)
    return [
        Asked(at_s, system + text(draw, draw.randrange(500, 4000)))
        for at_s in _arrivals(draw, 12.0, count)
    ]


def _arrivals(draw: random.Random, per_s: float, count: int) -> Iterator[float]:
    at_s = 0.0
    for _ in range(count):
        at_s += draw.expovariate(per_s)
        yield at_s
