"""A budget of frames that bring nothing."""

from __future__ import annotations

from contextlib import suppress

from model_server.pathways.http2.frames import ConnectionFault
from model_server.pathways.http2.patience import CHEAP, FULL, Patience


def spent(patience: Patience) -> int:
    """Return how many cheap frames pass before the fault."""
    count = 0
    with suppress(ConnectionFault):
        while True:
            patience.spend(CHEAP, "pings")
            count += 1
    return count


def test_a_budget_grows_with_time_and_answers_but_not_while_the_peer_does_not_read() -> None:
    now_s = [0.0]
    patience = Patience(lambda: now_s[0])
    assert spent(patience) == FULL
    now_s[0] += 2
    assert spent(patience) == 2000
    patience.earn(30)
    assert spent(patience) == 30
    now_s[0] += 1e6
    assert spent(patience) == FULL
    patience.reading = False
    now_s[0] += 2
    assert spent(patience) == 0
