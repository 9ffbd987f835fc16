"""What layers of Mistral Large 4 keep and lend, and what its config.json may say."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.checkpoints.text_part import text_config
from model_server.models.registry import make_recipe
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.models.family_cases import config_of
from tests.model_server.models.refusals import refused_otherwise

CONFIG = text_config(config_of("mistral_large4"))


def made(changes: dict[str, Any]) -> Any:
    return make_recipe("auto", CONFIG | changes, {})


def test_a_layer_keeps_latents_of_its_own_and_keys_of_its_own_indexer_alone() -> None:
    """Latents of 16 numbers, 8 more where keys rotate, and 14 of an indexer."""
    recipe = made({})
    cache = recipe.cache(1)
    assert cache.lenders == (None, 0, 0, None, 3, None)
    assert recipe.choosers == (None, 0, None, None, 3, 3)
    kept = [cache.layer(index, 0, 1, "float32", _width) for index in range(6)]
    assert kept == [16 + 8 + 14, (), 14, 16 + 14, (), 16 + 8]
    assert cache.plain


def _width(cache: Any, pages: int, page_size: int, dtype: Any) -> Any:
    return cache.key_dim


def test_the_kernels_of_tpus_compute_layers_that_lend_nothing() -> None:
    assert not made({"kv_source_layers": None}).cache(1).plain


def test_stages_are_cut_only_where_no_layer_lends() -> None:
    recipe: Any = make_recipe("auto", CONFIG, {"NUM_STAGES": "2"})
    assert len(recipe.cut()) == 2
    recipe = make_recipe("auto", CONFIG, {"NUM_STAGES": "3"})
    with pytest.raises(InvalidRequest, match="the keys and values of layer 0"):
        recipe.cut()


def test_a_null_is_the_default() -> None:
    keys = ("final_logit_softcapping", "kv_source_layers", "no_rope_layers", "rope_parameters")
    nulls, missing = made(dict.fromkeys(keys)), {k: v for k, v in CONFIG.items() if k not in keys}
    found, wanted = (
        recipe.build(WeightForm()) for recipe in (nulls, make_recipe("auto", missing, {}))
    )
    assert found.turns == wanted.turns == (True, True, True, False, True, True)
    assert found.rope == wanted.rope != made({}).build(WeightForm()).rope
    assert found.logits_softcap == wanted.logits_softcap == 30.0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"q_lora_rank": 20}, "q_lora_rank = 20"),
    ({"n_group": 2}, "n_group"),
    ({"norm_topk_prob": False}, "norm_topk_prob"),
    ({"no_rope_layers": [1, 0]}, "a 1 for each of its 6 layers"),
    ({"kv_source_layers": [0, 0]}, "one for each of its 6 layers"),
    # A later layer; one that does not rotate; and one that is not the last to lend.
    ({"kv_source_layers": [0, 3, 0, 3, 3, 5]}, "3 in kv_source_layers for layer 1"),
    ({"kv_source_layers": [0, 0, 0, 3, 0, 5]}, "0 in kv_source_layers for layer 4"),
    ({"kv_source_layers": [0, 1, 1, 3, 3, 0]}, "0 in kv_source_layers for layer 5"),
    ({"final_logit_softcapping": 0}, "final_logit_softcapping = 0"),
    ({"layer_types": ["full_attention"] * 6}, "layer_types"),
    ({"index_head_dim": 6}, "index_head_dim = 6"),
]


def test_what_is_not_computed_is_refused_by_name() -> None:
    assert refused_otherwise(made, REFUSED, CheckpointError) == {}
