"""SmolLM3 in GGUF: files take for granted which layers do not rotate."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.checkpoints.gguf.architectures.llama_kin import SMOLLM3
from model_server.checkpoints.gguf.config import metadata_of
from sax.errors import CheckpointError

CONFIG: dict[str, Any] = {
    "model_type": "smollm3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": 97,
}


def test_the_usual_layers_are_written_whether_they_are_listed_or_not() -> None:
    listed = metadata_of(CONFIG | {"no_rope_layers": [1, 1, 1, 0]}, SMOLLM3)
    assert listed == metadata_of(CONFIG, SMOLLM3)
    assert listed["block_count"] == 4


def test_other_layers_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"no_rope_layers = \[1, 0, 1, 1\] cannot be written"):
        metadata_of(CONFIG | {"no_rope_layers": [1, 0, 1, 1]}, SMOLLM3)
