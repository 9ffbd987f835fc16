"""What is particular to Ministral 3; its logits are in test_families.py."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from model_server.models.layers.rope import QueryGrowth
from tests.model_server.models.layer_shapes import TINY, decoder_of

MINISTRAL3 = TINY | {"model_type": "ministral3", "head_dim": 8}
ROPE = {
    "factor": 4.0,
    "llama_4_scaling_beta": 0.5,
    "original_max_position_embeddings": 16,
    "rope_theta": 1e6,
    "rope_type": "yarn",
}


def test_queries_grow_with_every_original_context() -> None:
    growth = QueryGrowth(0.5, 16)
    found = growth.at(jnp.asarray([0, 15, 16, 33], jnp.int32))
    wanted = [1.0, 1.0, 1 + 0.5 * math.log(2), 1 + 0.5 * math.log(3)]
    np.testing.assert_allclose(np.ravel(found), wanted, rtol=1e-6)


def test_the_growth_is_that_of_the_config_or_the_usual_one() -> None:
    def growth(**config: Any) -> QueryGrowth:
        return decoder_of(MINISTRAL3 | config).ropes[0].query_growth

    assert growth(rope_parameters=ROPE) == QueryGrowth(0.5, 16)
    assert growth() == QueryGrowth(0.1, 16384)
