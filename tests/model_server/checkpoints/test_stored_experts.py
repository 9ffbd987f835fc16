"""A model learns how its experts are stored: together or one by one, turned or upright."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.text_part import text_config
from model_server.models.registry import make_recipe
from tests.each_case import each_case
from tests.model_server.models.family_cases import checkpoint_of, config_of


@each_case(
    "case, apart",
    [("qwen3_5_moe", None), ("qwen3_5_moe_experts_apart", True), ("qwen3_next", None)],
)
def test_the_config_says_where_the_names_do(case: str, apart: bool | None) -> None:
    with closing(open_checkpoint(str(checkpoint_of(case)))) as checkpoint:
        assert checkpoint.config.get("experts_apart") is apart


@each_case("case, upright", [("qwen3_vl_moe", None), ("qwen3_vl_moe_saved", True)])
def test_matrices_that_do_not_lie_as_published_are_told(case: str, upright: bool | None) -> None:
    with closing(open_checkpoint(str(checkpoint_of(case)))) as checkpoint:
        assert checkpoint.config.get("experts_upright") is upright
        assert "experts_apart" not in checkpoint.config


def test_the_text_part_of_a_published_config_is_a_text_model() -> None:
    tokens = {"image_token_id": 90, "video_token_id": 91, "vision_end_token_id": 92}
    given = {
        "text_config": config_of("qwen3_5_moe"),
        "vision_config": {"depth": 1, "out_hidden_size": 48},
        **tokens,
    }
    recipe: Any = make_recipe("auto", text_config({"model_type": "qwen3_5_moe", **given}), {})
    assert (recipe.embed, recipe.recurrent) == (48, True)
