"""Draws of small configs: the same for a seed, such as families take; and what a wrong number is
called."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

import numpy as np

from tests.model_server.models.family_cases import FAMILIES
from tests.model_server.models.media.media_cases import media_config_of
from tests.tools.random_configs import candidates, changes_of, outcome_of


def test_draws_follow_the_seed_and_lists_of_layers_their_number() -> None:
    first, again, other = (
        [*islice(candidates("lfm2", seed, 0), 4)] for seed in (20261129, 20261129, 20261130)
    )
    assert first == again != other
    assert {len(config["layer_types"]) - config["num_hidden_layers"] for _, config in first} == {0}
    assert len({json.dumps(config) for _, config in first}) == 4


def test_a_case_is_equal_or_the_draw_is_named(tmp_path: Path) -> None:
    draw = tmp_path / "llama-0"
    shutil.copytree(FAMILIES / "llama_tied", draw / "0")
    (draw / "0" / "base").write_text("llama_untied_mqa")
    assert outcome_of(draw) == "equal"
    golden = dict(np.load(draw / "0" / "golden.npz"))
    golden["logits"][3, 5] += 1
    shutil.move(draw / "0", draw / "1")
    np.savez(draw / "1" / "golden.npz", **golden)
    told = outcome_of(draw)
    assert told.startswith("FAULT: whole: differs by ")
    assert "llama_untied_mqa with {" in told
    assert '"tie_word_embeddings": true' in changes_of(draw / "1")


def test_what_transformers_does_not_run_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "llama-0" / "0").mkdir(parents=True)
    (tmp_path / "llama-0" / "0" / "rejected").write_text("ValueError: odd")
    assert outcome_of(tmp_path / "llama-0").startswith("not drawn: transformers runs none of 1")


def test_whole_models_with_encoders_are_drawn_with_the_sizes_that_these_have() -> None:
    for base, config in islice(candidates("qwen3_5", 20261129, 0), 4):
        assert base.startswith("media/qwen3_5")
        before = media_config_of(base.removeprefix("media/"))
        assert config["vision_config"] == before["vision_config"]
        assert config["text_config"]["hidden_size"] == before["text_config"]["hidden_size"]
        assert config["text_config"] != before["text_config"]
