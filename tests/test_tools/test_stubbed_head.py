"""The stub that makes a head of random weights right: by how much, and in which text."""

from __future__ import annotations

from typing import Any, cast

from model_server.engine.running.ops import Beginning, Later, Op, Proposals, Propose, Runner
from tests.tools.bench.stubbed_head import SHARE_RIGHT, Stubbed


class Head:
    """Drafts nothing of use."""

    def do(self, op: Op) -> Any:
        assert isinstance(op, Propose)
        return Later(lambda: Proposals([(0,) * each.count for each in op.beginnings], 0.25))


def drafted(stub: Stubbed, start: int, token: int, count: int) -> tuple[int, ...]:
    made = stub.do(Propose((Beginning(0, start, token, count),))).result()
    assert made.seconds == 0.25
    return made.tokens[0]


def test_seven_of_ten_are_the_tokens_of_the_text() -> None:
    stub, text = Stubbed(cast("Runner", Head())), range(1, 2001)
    stub.learn(text)
    made = [drafted(stub, start, text[start], 1)[0] for start in range(1900)]
    right = sum(token == text[place + 1] for place, token in enumerate(made))
    assert abs(right / len(made) - SHARE_RIGHT) < 0.05
    assert drafted(stub, 5, text[5], 8) == tuple(made[5:13])


def test_the_last_text_with_the_same_token_is_followed_and_nothing_behind_its_end() -> None:
    stub = Stubbed(cast("Runner", Head()))
    assert drafted(stub, 3, 4, 2) == (0, 0)
    stub.learn([1, 2, 3, 4, *[5] * 20])
    stub.learn([1, 2, 3, 9, *[6] * 20])
    for token, others in ((4, {0, 5}), (9, {0, 6}), (7, {0})):
        assert {*drafted(stub, 3, token, 20)} == others
    assert drafted(stub, 23, 6, 3) == (0, 0, 0)
