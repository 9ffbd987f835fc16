"""Large checkpoints are cut into files as Hugging Face names them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from model_server.checkpoints.huggingface.safetensors_writer import _shards
from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from tests.model_server.checkpoints.tiny_folder import CONFIG, random_weights

WEIGHTS = random_weights(CONFIG)


def test_shards_and_their_index_are_what_other_programs_read(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), str(tmp_path / "out"), max_shard=5000)
    out = tmp_path / "out"
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert len(files) > 3
    assert index["metadata"]["total_size"] == sum(v.nbytes for v in WEIGHTS.values())
    for name, file in index["weight_map"].items():
        np.testing.assert_array_equal(load_file(out / file)[name], WEIGHTS[name])
    again = open_checkpoint(str(out))
    for name, values in WEIGHTS.items():
        np.testing.assert_array_equal(again.read(name), values)


@given(st.lists(st.integers(0, 20), min_size=1), st.integers(1, 30))
def test_no_shard_is_too_large_and_order_is_kept(sizes: list[int], limit: int) -> None:
    named = {str(number): size for number, size in enumerate(sizes)}
    shards = _shards(named, limit)
    assert [name for shard in shards for name in shard] == list(named)
    assert all(shards)
    for shard in shards:
        assert len(shard) == 1 or sum(named[name] for name in shard) <= limit
