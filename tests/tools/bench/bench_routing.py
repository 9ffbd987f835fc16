"""Prefix affinity beside least load: prefix hits, balance and first tokens, in simulated time.

Replicas and prompts are those of `tests.sax.client.simulation`; the choice is the client's
own.
"""

from __future__ import annotations

from tests.sax.client.simulation import chats, documents, simulate, strangers
from tests.tools.bench.table import Table

_WORKLOADS = {
    "chats: one system prompt of 1,500 characters, 8 turns": chats,
    "questions about 24 documents of 16,000 characters": documents,
    "nothing shared but a system prompt of 400 characters": strangers,
}


def run() -> Table:
    table = Table(
        "Prefix affinity beside least load",
        "Simulated: 4 replicas, each with a prefix cache of 262,144 characters; 8 to 12 requests a "
        "second; gateways that know their own requests only. Each pair is least load / affinity. "
        "Prefix hits are a share of the prompts' characters; imbalance is the requests of the "
        "busiest replica by those of the average one.",
        ("prompts", "gateways", "prefix hits", "imbalance", "first token ms, mean", "99th"),
    )
    for name, make in _WORKLOADS.items():
        asked = make()
        for gateways in (1, 3):
            pair = [simulate(asked, affinity=on, gateways=gateways) for on in (False, True)]
            table.add(
                name,
                gateways,
                " / ".join(f"{each.hit_rate:.2f}" for each in pair),
                " / ".join(f"{each.imbalance:.2f}" for each in pair),
                " / ".join(f"{1e3 * each.first_token_s:.0f}" for each in pair),
                " / ".join(f"{1e3 * each.slowest_s:.0f}" for each in pair),
            )
    return table
