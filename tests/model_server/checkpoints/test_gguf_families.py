"""Every family goes into a GGUF file and comes back: its tensors and its configuration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.gguf.config import architecture_for
from model_server.checkpoints.gguf.rope import rope_of, rope_type
from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.each_case import Failures, each_case
from tests.model_server.checkpoints.gguf_case import (
    REFUSED,
    one_of_each_type,
    write_case,
    written_cases,
)

ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings")
# Keys of config.json that say nothing about what is computed when a model is served as it is here.
SILENT = (
    *("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    *("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "embd_pdrop"),
    *(
        "hidden_dropout_prob",
        "resid_pdrop",
        "initializer_range",
        "embedding_initializer_range",
        "gradient_checkpointing",
    ),
    *("aux_loss_alpha", "seq_aux", "router_aux_loss_coef", "output_router_logits", "ep_size"),
    *("num_nextn_predict_layers", "pad_token_id", "pretraining_tp", "summary_type", "n_ctx"),
    *("cache_implementation", "rotary", "scale_attn_weights"),
    *("activation_function", "attention_softmax_in_fp32", "embedding_dropout", "mlp_type"),
    *("layer_norm_epsilon", "norm_type", "residual_dropout", "scale_attention_softmax_in_fp32"),
    *("order_of_interleaved_layers", "position_embedding_type", "rotary_pct"),
    *("use_embedding_sharing", "use_gated_activation", "use_parallel_block"),
    *("use_parallel_embedding", "add_classification_head", "attention_head_dim", "class_num"),
    "eod_token_id",
    # of the part that sees images
    *("boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image"),
    *("text_config", "vision_config", "multimodal_projector_bias", "projector_hidden_act"),
    *("spatial_merge_size", "vision_feature_layer"),
    # a feed-forward's width before it is adjusted
    *("block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"),
    # said by layer_types and sliding_window
    *("max_window_layers", "sliding_window_pattern", "_sliding_window_pattern"),
)


def others() -> list[str]:
    return [case for case in written_cases() if case not in one_of_each_type()]


Cases = Callable[[], list[str]]
EACH = pytest.mark.parametrize(
    "cases", [one_of_each_type, pytest.param(others, marks=pytest.mark.nightly)]
)


@pytest.fixture(scope="module")
def place_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Where a case's folder is, and x.gguf, which was made of it."""

    @cache
    def made(case: str) -> Path:
        place = tmp_path_factory.mktemp(case)
        convert(str(write_case(case, place / "folder")), str(place / "x.gguf"))
        return place

    return made


@EACH
def test_a_round_trip_changes_no_tensor(cases: Cases, place_of: Callable[[str], Path]) -> None:
    """But for Gemma's norms: the file holds 1 + w, of which the last bits of w are lost."""
    failures = Failures()
    for case in cases():
        with failures.of(case):
            place = place_of(case)
            convert(str(place / "x.gguf"), str(place / "back"))
            compare_tensors(place)
    assert not failures, str(failures)


def compare_tensors(place: Path) -> None:
    with (
        closing(open_checkpoint(str(place / "folder"))) as before,
        closing(open_checkpoint(str(place / "back"))) as after,
    ):
        architecture = architecture_for(before.config)
        kept = [n for n in before.names() if not architecture.drops(n, before.config)]
        assert sorted(after.names()) == sorted(architecture.usual(name) for name in kept)
        for name in kept:
            named = architecture.from_hf(name)
            assert named is not None
            loss = 2e-7 if named.place.plus else 0.0
            found, wanted = after.read(architecture.usual(name)), before.read(name)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=loss, err_msg=name)


@EACH
def test_a_round_trip_changes_no_configuration(
    cases: Cases, place_of: Callable[[str], Path]
) -> None:
    failures = Failures()
    for case in cases():
        with failures.of(case):
            compare_configurations(place_of(case))
    assert not failures, str(failures)


def compare_configurations(place: Path) -> None:
    with closing(open_checkpoint(str(place / "x.gguf"))) as checkpoint:
        after = checkpoint.config
    with closing(open_checkpoint(str(place / "folder"))) as checkpoint:
        before = checkpoint.config
    lost = SILENT
    if not before.get("use_sliding_window", True) or not before.get("sliding_window"):
        lost = (*lost, "sliding_window")
    if before["model_type"] == "gemma3_text":
        lost = (*lost, "attn_logit_softcapping")  # applied nowhere
    if before["model_type"] == "lfm2":
        lost = (*lost, "intermediate_size")  # the file has the adjusted one
    if before["model_type"].startswith("gemma"):
        lost = (*lost, "hidden_act")  # hidden_activation counts
    if before["model_type"] == "mistral" and not before["sliding_window"]:
        lost = (*lost, "model_type")  # it is a Llama
    if isinstance(before.get("eos_token_id"), list):  # the others are the tokenizer's
        before["eos_token_id"] = before["eos_token_id"][0]
    for key, value in before.items():
        if value is not None and key not in (*lost, *ROPE):
            assert after.get(key) == value, key
    assert comparable_rope(after) == comparable_rope(before)


def comparable_rope(config: dict[str, Any]) -> tuple[Any, ...]:
    """Old keys and new alike, with what is unsaid said."""
    if whole := (config.get("rope_parameters") or {}).get("full_attention"):
        config = {**config, "rope_parameters": whole, "rope_theta": whole["rope_theta"]}
    if config["model_type"] == "gemma3_text":
        config = {"rope_theta": 1000000.0, **config}
    theta, scaling = rope_of(config)
    original = scaling.get("original_max_position_embeddings")
    original = original or config.get("original_max_position_embeddings")
    kept = {k: v for k, v in scaling.items() if k not in ("type", "rope_type")}
    kept.pop("original_max_position_embeddings", None)
    kept.pop("partial_rotary_factor", None)  # a key of its own
    return theta if scaling else None, rope_type(scaling), original if scaling else None, kept


@each_case("case, words", REFUSED.items())
def test_what_gguf_cannot_say_is_refused(case: str, words: str, tmp_path: Path) -> None:
    folder = write_case(case, tmp_path / "folder")
    with pytest.raises(CheckpointError, match=words):
        convert(str(folder), str(tmp_path / "x.gguf"))
