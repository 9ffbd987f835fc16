"""LFM2 in GGUF: a file says which layers attend, and how wide the feed-forwards are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.gguf.architectures.lfm2 import LFM2
from model_server.checkpoints.gguf.config import metadata_of
from model_server.checkpoints.gguf.facts import Facts
from model_server.checkpoints.gguf.header import GgufHeader
from sax.errors import CheckpointError
from tests.each_case import each_case

CONFIG: dict[str, Any] = {
    "model_type": "lfm2",
    "hidden_size": 32,
    "intermediate_size": 60,
    "max_position_embeddings": 128,
    "norm_eps": 1e-5,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}


def read(counts: Any) -> dict[str, Any]:
    metadata = {"lfm2.attention.head_count_kv": counts, "lfm2.feed_forward_length": 40}
    facts = Facts(GgufHeader(metadata=metadata, tensors={}), "lfm2")
    return LFM2.more_config(facts, CONFIG | {"tie_word_embeddings": True})


def test_layers_without_key_heads_are_convolutions() -> None:
    found = read(np.asarray([0, 2, 0]))
    assert found["layer_types"] == ["conv", "full_attention", "conv"]
    assert found["num_key_value_heads"] == 2
    assert read(2)["layer_types"] == ["full_attention"] * 3


@each_case("counts", [[0, 0, 0], [1, 2, 0], [-1, 0, 0]])
def test_layers_that_attend_differently_are_refused(counts: list[int]) -> None:
    with pytest.raises(CheckpointError, match="all layers that attend must be alike"):
        read(np.asarray(counts))


def test_the_width_is_written_as_it_is_computed() -> None:
    listed = {"layer_types": ["conv", "conv", "full_attention"]}
    adjusted = {"block_auto_adjust_ff_dim": True, "block_multiple_of": 16}
    assert metadata_of(CONFIG | listed | adjusted, LFM2)["feed_forward_length"] == 48
    kept = metadata_of(CONFIG | {"full_attn_idxs": [2], "block_auto_adjust_ff_dim": False}, LFM2)
    assert kept["feed_forward_length"] == 60
    assert kept["attention.head_count_kv"] == [0, 0, 2]
