"""What transformers saves of a model is the model; the golden cases hold what it saves."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.opening import open_checkpoint
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.models.family_cases import checkpoint_of

RATES = "model.layers.0.self_attn.slope_rate"


def test_what_minimax_computes_is_no_weight() -> None:
    with closing(open_checkpoint(str(checkpoint_of("minimax")))) as checkpoint:
        assert not [name for name in checkpoint.names() if "slope" in name or "decay" in name]


@each_case("factor, taken", [(1.0, True), (1.004, True), (1.1, False), (-1.0, False)])
def test_rates_of_another_model_are_refused(tmp_path: Path, factor: float, taken: bool) -> None:
    source = checkpoint_of("minimax")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    tensors[RATES] = (tensors[RATES] * factor).astype(np.float32)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    if taken:
        open_checkpoint(str(tmp_path)).close()
        return
    with pytest.raises(CheckpointError, match=f"{RATES} holds other rates than those of layer 0"):
        open_checkpoint(str(tmp_path))


HASHES = "model.layers.0.ple.ple_embedding.layer_multipliers"


@each_case("added, taken", [(0, True), (2, False)])
def test_hashes_of_another_seed_are_refused(tmp_path: Path, added: int, taken: bool) -> None:
    source = checkpoint_of("qwen4_exp")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    tensors[HASHES] = tensors[HASHES] + added
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    if taken:
        with closing(open_checkpoint(str(tmp_path))) as checkpoint:
            assert HASHES not in checkpoint.names()
        return
    with pytest.raises(CheckpointError, match=f"{HASHES} holds other numbers"):
        open_checkpoint(str(tmp_path))
