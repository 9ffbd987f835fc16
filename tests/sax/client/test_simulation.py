"""Affinity beside least load, in simulated time: more prefix hits at the same balance."""

from __future__ import annotations

import pytest

from tests.sax.client.simulation import Asked, chats, documents, simulate, strangers


@pytest.mark.extended
@pytest.mark.parametrize("gateways", [1, 3])
def test_chats_find_their_earlier_turns_and_the_load_stays_even(gateways: int) -> None:
    asked = chats()
    plain = simulate(asked, affinity=False, gateways=gateways)
    found = simulate(asked, affinity=True, gateways=gateways)
    assert found.hit_rate > plain.hit_rate + 0.08
    assert found.first_token_s < 0.9 * plain.first_token_s
    assert found.imbalance < 1.15


@pytest.mark.extended
@pytest.mark.parametrize("gateways", [1, 3])
def test_questions_about_one_document_meet_although_gateways_do_not_talk(gateways: int) -> None:
    asked = documents()
    plain = simulate(asked, affinity=False, gateways=gateways)
    found = simulate(asked, affinity=True, gateways=gateways)
    assert found.hit_rate > plain.hit_rate + 0.08
    assert found.first_token_s < 0.6 * plain.first_token_s
    assert found.imbalance < 1.25


def test_prompts_with_little_in_common_are_spread_by_load() -> None:
    asked = strangers()
    plain, found = simulate(asked, affinity=False), simulate(asked, affinity=True)
    assert found.imbalance < 1.05
    assert found.first_token_s < 1.2 * plain.first_token_s


def test_one_prompt_for_all_is_not_sent_to_one_replica_alone() -> None:
    asked = [Asked(0.02 * i, "All work and no play. " * 100) for i in range(1000)]
    assert simulate(asked, affinity=True).imbalance < 1.3
