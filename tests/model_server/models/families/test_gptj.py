"""What GPT-J's configs may say. (Its logits: test_families.py.)"""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.registry import make_recipe
from sax.errors import InvalidRequest

CONFIG = {
    "model_type": "gptj",
    "n_embd": 512,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 48,
    "vocab_size": 61,
}


def test_the_context_ends_where_its_positions_end() -> None:
    assert make_recipe("gptj", CONFIG, {}).max_context == 48
    with pytest.raises(InvalidRequest, match="more than the 48 tokens"):
        make_recipe("gptj", CONFIG, {"MAX_CONTEXT": "49"})


def test_half_of_a_head_of_128_turns_where_the_config_does_not_say() -> None:
    model = _abstract(CONFIG)
    assert [2 * len(rope.frequencies) for rope in model.ropes] == [64, 64]
    assert all(rope.interleaved for rope in model.ropes)


def _abstract(config: dict[str, Any]) -> Any:
    module = make_recipe("gptj", config, {}).blueprint()
    return module.assemble([leaf for weight in module.declarations for leaf in weight.leaves])
