"""A head that is stored beside the embedding, or instead of it: as transformers reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.text_part import text_config
from model_server.loading.weights import mismatches
from model_server.models.registry import make_recipe
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import CONFIG, write_json, write_tiny
from tests.model_server.models.family_cases import checkpoint_of, config_of
from tests.model_server.models.layer_shapes import TINY, decoder_of

HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
Change = Callable[[dict[str, np.ndarray]], None]


def of_its_own(tensors: dict[str, np.ndarray]) -> None:
    tensors[HEAD] = tensors[TABLE].copy()
    tensors[HEAD][-1, -1] += 1


def repeated(tensors: dict[str, np.ndarray]) -> None:
    tensors[HEAD] = tensors[TABLE].copy()


def alone(tensors: dict[str, np.ndarray]) -> None:
    tensors[HEAD] = tensors.pop(TABLE)


def opened(folder: Path, change: Change, **config: Any) -> tuple[bool, list[str], np.ndarray]:
    """Return whether the model has a head of its own, what its weights lack, and the embedding."""
    weights = write_tiny(folder / "tiny", **config) / "model.safetensors"
    said = {key: value for key, value in (CONFIG | config).items() if value is not None}
    write_json(folder / "tiny" / "config.json", said)
    tensors = load_file(weights)
    change(tensors)
    save_file(tensors, weights, {"format": "pt"})
    with closing(open_checkpoint(str(folder / "tiny"))) as checkpoint:
        blueprint = make_recipe("auto", checkpoint.config, {}).blueprint()
        names = {name for each in blueprint.declarations for name in each.source.names}
        wrong = list(mismatches(blueprint.declarations, checkpoint))
        return HEAD in names, wrong, checkpoint.read(TABLE)


@each_case(
    "change, config, own",
    [
        (of_its_own, {"tie_word_embeddings": True}, True),
        (of_its_own, {"tie_word_embeddings": None, "model_type": "smollm3"}, True),
        (repeated, {"tie_word_embeddings": True}, False),
        (repeated, {"tie_word_embeddings": None, "model_type": "smollm3"}, False),
        (repeated, {"tie_word_embeddings": None}, True),
        (repeated, {"tie_word_embeddings": False}, True),
        (alone, {"tie_word_embeddings": True}, False),
        (alone, {"tie_word_embeddings": None, "model_type": "smollm3"}, False),
    ],
)
def test_a_stored_head_counts_if_its_numbers_are_its_own(
    tmp_path: Path, change: Change, config: dict[str, Any], own: bool
) -> None:
    assert opened(tmp_path, change, **config)[:2] == (own, [])


def test_a_head_that_is_stored_alone_is_the_embedding(tmp_path: Path) -> None:
    np.testing.assert_array_equal(
        opened(tmp_path, alone)[2], load_file(tmp_path / "tiny" / "model.safetensors")[HEAD]
    )


@each_case(
    "head, table",
    [
        (HEAD, "backbone.embeddings.weight"),
        (HEAD, "transformer.wte.weight"),
        ("embed_out.weight", "gpt_neox.embed_in.weight"),
        ("proj_out.weight", "model.decoder.embed_tokens.weight"),
    ],
)
def test_every_familys_head_is_compared(tmp_path: Path, head: str, table: str) -> None:
    write_json(tmp_path / "config.json", {"model_type": "any"})
    for by, said in ((0, None), (1, False)):
        numbers = np.ones((3, 2), np.float32)
        save_file({table: numbers, head: numbers + by}, tmp_path / "model.safetensors")
        with closing(open_checkpoint(str(tmp_path))) as checkpoint:
            assert checkpoint.config.get("tie_word_embeddings") is said


@each_case("older, newer, own", [(True, False, False), (False, True, True), (None, False, True)])
def test_of_two_names_of_the_tie_of_lfm2_the_older_counts(
    older: bool | None, newer: bool, own: bool
) -> None:
    config = TINY | {"model_type": "lfm2", "full_attn_idxs": [1], "tie_embedding": older}
    assert (decoder_of(config | {"tie_word_embeddings": newer}).head is not None) is own


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


@each_case("case, unbiased", [("axk1", None), ("axk1_unbiased", True), ("deepseek_v3", None)])
def test_routers_without_offsets_are_told(case: str, unbiased: bool | None) -> None:
    with closing(open_checkpoint(str(checkpoint_of(case)))) as checkpoint:
        assert checkpoint.config.get("router_unbiased") is unbiased


def test_the_text_part_of_a_published_config_is_a_text_model() -> None:
    tokens = {"image_token_id": 90, "video_token_id": 91, "vision_end_token_id": 92}
    given = {
        "text_config": config_of("qwen3_5_moe"),
        "vision_config": {"depth": 1, "out_hidden_size": 48},
        **tokens,
    }
    recipe: Any = make_recipe("auto", text_config({"model_type": "qwen3_5_moe", **given}), {})
    assert (recipe.embed, recipe.recurrent) == (48, True)
