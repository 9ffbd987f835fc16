"""PEFT adapters: what is read from their two files, and what is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.huggingface import peft
from model_server.checkpoints.huggingface.peft import CONFIG, WEIGHTS, open_adapter
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.adapter_folder import write_adapter
from tests.model_server.checkpoints.tiny_folder import write_tiny

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("peft") / "base")


def scales(folder: Path, base: Path, **config: Any) -> Mapping[str, float]:
    adapter = open_adapter(str(write_adapter(folder, base, rank=4, alpha=8.0, **config)))
    adapter.close()
    return {name: module.scale for name, module in adapter.modules.items()}


def test_factors_are_named_after_the_bases_modules(tmp_path: Path, base: Path) -> None:
    adapter = open_adapter(str(write_adapter(tmp_path, base, rank=3)))
    stored = load_file(tmp_path / WEIGHTS)
    assert len(adapter.modules) == 2 * 7
    assert adapter.modules[Q].rank == 3
    np.testing.assert_array_equal(
        adapter.read(f"{Q}.lora_A.weight"), stored[f"base_model.model.{Q}.lora_A.weight"]
    )
    adapter.close()


def test_a_scale_follows_alpha_rank_and_patterns(tmp_path: Path, base: Path) -> None:
    assert scales(tmp_path / "plain", base)[Q] == 8 / 4
    assert scales(tmp_path / "rs", base, use_rslora=True)[Q] == 8 / math.sqrt(4)
    found = scales(tmp_path / "pattern", base, alpha_pattern={"layers.1.mlp.down_proj": 2})
    assert (found[Q], found[DOWN]) == (8 / 4, 2 / 4)
    by_expression = {r".*\.(q|k)_proj": 16, r"layers\.\d+\.mlp\.down_proj": 2, "q_proj": 1}
    found = scales(tmp_path / "expressions", base, alpha_pattern=by_expression)
    assert (found[Q], found[DOWN]) == (16 / 4, 2 / 4)
    whole_only = {"^layers.1.mlp.down_proj": 2, r"^model.layers.0.self_attn.q_proj$": 3}
    found = scales(tmp_path / "whole", base, alpha_pattern=whole_only)
    assert (found[Q], found[DOWN]) == (3 / 4, 8 / 4)
    ranked = {"rank_pattern": {"(.*)q_proj": 4}, "r": 9}  # as the tensors say
    assert scales(tmp_path / "ranks", base, **ranked)[Q] == 8 / 4
    assert (
        scales(tmp_path / "eva", base, init_lora_weights="eva")[Q] == 8 / 4
    )  # the base is as it was


@each_case(
    "change, said",
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
        ({"bias": "all"}, "'bias' is all"),
        ({"use_dora": True}, "has no lora_magnitude_vector, and use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save' is"),
        ({"layer_replication": [[0, 4]]}, "'layer_replication' is"),
        ({"something_new": 3}, "'something_new' is 3"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is pissa_niter_4"),
        ({"alpha_pattern": {"(a": 3}}, "'.a' is no regular expression"),
        ({"alpha_pattern": [3]}, "alpha_pattern is"),
        ({"rank_pattern": {"q_proj": "4"}}, "rank_pattern is"),
        ({"alpha_pattern": {"q_proj": -1}}, "alpha_pattern is"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights is lora_ga"),
        ({"lora_alpha": "8"}, "lora_alpha is 8"),
        ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
    ],
)
def test_what_is_not_plain_low_rank_is_refused_by_name(
    tmp_path: Path, base: Path, change: dict[str, Any], said: str
) -> None:
    write_adapter(tmp_path, base, **change)
    with pytest.raises(CheckpointError, match=said):
        open_adapter(str(tmp_path))


@each_case(
    "name, shape, said",
    [
        ("base_model.model.lm_head.weight", (3, 3), "lm_head.weight.*not a low.*sax convert BASE"),
        (f"base_model.model.{Q}.lora_magnitude_vector", (3,), "q_proj' has a lora_magnitude_vec"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", (2, 3), "not a low-rank factor"),
        (f"base_model.model.{Q}.lora_B.weight", (24, 3), "they must be .r, in. and .out, r."),
        (f"base_model.model.{Q}.lora_A.weight", (0, 12), "they must be"),
        ("base_model.model.alone.lora_A.weight", (2, 3), "'alone' are .2, 3. and ..;"),
    ],
)
def test_tensors_that_are_no_factors_are_refused(
    tmp_path: Path, base: Path, name: str, shape: tuple[int, ...], said: str
) -> None:
    write_adapter(tmp_path, base)
    tensors = load_file(tmp_path / WEIGHTS) | {name: np.zeros(shape, np.float32)}
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=said):
        open_adapter(str(tmp_path))


def test_broken_files_are_named(tmp_path: Path, base: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        open_adapter(str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match=f"holds no {CONFIG}"):
        open_adapter(str(tmp_path))
    write_adapter(tmp_path, base)
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match=WEIGHTS):
        open_adapter(str(tmp_path))
    (tmp_path / WEIGHTS).write_bytes(b"\xff" * 64)
    with pytest.raises(CheckpointError, match="header of"):
        open_adapter(str(tmp_path))
    (tmp_path / CONFIG).write_text(json.dumps([]))
    with pytest.raises(CheckpointError, match="JSON object"):
        open_adapter(str(tmp_path))


def test_an_expression_that_would_run_for_hours_is_refused(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peft, "_SECONDS", 0.2)
    write_adapter(tmp_path, base, alpha_pattern={r"(\w*\.?)*(\w+)*#": 3})
    with pytest.raises(CheckpointError, match="ran for more than 0.2 s.*name the modules in full"):
        open_adapter(str(tmp_path))
