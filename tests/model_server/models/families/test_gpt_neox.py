"""What GPT-NeoX's configs may say. (Its logits: test_families.py.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.region import deliver
from model_server.models.families.gpt_neox import _attention_sources
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.rope import rope_frequencies
from model_server.models.registry import make_recipe
from model_server.models.weights.source import WeightSource, source_of

CONFIG = {
    "model_type": "gpt_neox",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 48,
    "vocab_size": 61,
}


class OneTensor:
    """Row r of the only tensor is [r]."""

    def __init__(self, rows: int) -> None:
        self._rows = np.arange(rows)[:, None]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._rows.shape

    def read(self, name: str, region: Any = None, out: Any = None) -> np.ndarray:
        return deliver(self._rows[region], out)


def rows(source: WeightSource, tensor: OneTensor) -> list[int]:
    count, width = source.shape(tensor)
    return source.read(tensor, (slice(0, count), slice(0, width)))[:, 0].tolist()


def test_queries_keys_and_values_are_taken_out_of_every_head() -> None:
    shape = AttentionShape(embed=4, heads=2, kv_heads=2, head_dim=2, scale=1.0)
    sources, fused = _attention_sources("x", shape, biased=False), OneTensor(12)
    assert rows(source_of(sources.q), fused) == [0, 1, 6, 7]
    assert rows(source_of(sources.k), fused) == [2, 3, 8, 9]
    assert rows(source_of(sources.v), fused) == [4, 5, 10, 11]


@pytest.mark.parametrize(
    "config",
    [
        {"rotary_pct": 0.5, "rotary_emb_base": 500},
        {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 500}},
    ],
    ids=["as published", "as transformers 5 writes it"],
)
def test_share_and_base_of_the_rotation_are_read_where_they_are(config: dict[str, Any]) -> None:
    (rope,) = set(_abstract(CONFIG | config).ropes)
    np.testing.assert_allclose(rope.frequencies, rope_frequencies(8, 500.0), rtol=1e-6)
    assert not rope.interleaved


def test_a_quarter_of_a_head_turns_where_the_config_does_not_say() -> None:
    (rope,) = set(_abstract(CONFIG).ropes)
    np.testing.assert_allclose(rope.frequencies, rope_frequencies(4, 10000.0), rtol=1e-6)


def _abstract(config: dict[str, Any]) -> Any:
    module = make_recipe("gpt_neox", config, {}).blueprint()
    return module.assemble([leaf for weight in module.declarations for leaf in weight.leaves])
