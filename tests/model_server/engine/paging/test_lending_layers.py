"""Models whose layers borrow keys and values, in steps of the engine, give their own tokens.

Their windows free pages, and prompts that begin alike share those of the layers that lend.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from model_server.config import PrefixSharing
from model_server.engine.limits import WindowLimits
from tests.model_server.engine.paging import test_recurrent_layers
from tests.model_server.engine.paging.test_recurrent_layers import Tiny
from tests.model_server.engine.paging.test_shared_pages import prompts_of, served, storm

pytestmark = [pytest.mark.timeout(600)]

LIMITS = replace(test_recurrent_layers.LIMITS, windows=WindowLimits(sliding=8))
CASES = ("gemma4", pytest.param("gemma3n", marks=pytest.mark.nightly))


@pytest.fixture(scope="module", params=CASES)
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return Tiny(request.param)


@pytest.mark.parametrize("sharing", [pytest.param("off", marks=pytest.mark.nightly), "tenant"])
def test_tokens_are_those_of_whole_sequences(tiny: Tiny, sharing: PrefixSharing) -> None:
    assert tiny.recipe.sliding_window == LIMITS.windows.sliding
    got, scheduler = served(tiny.runner(replace(LIMITS, prefix_cache=sharing)), storm())
    assert (scheduler.load().prefix_hits > 0) == (sharing != "off")
    assert scheduler.load().window_pages_used == 0
    for prompt, answer in zip(prompts_of(storm(), got), got, strict=True):
        assert tiny.lacking(prompt, answer) < 1e-5
