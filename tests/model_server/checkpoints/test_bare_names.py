"""Files of a model without its head leave out what the model is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.bare_names import with_whole_names
from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.opening import open_checkpoint
from sax.errors import CheckpointError

WANTED = ("transformer.wte.weight", "transformer.h.0.ln_1.weight", "lm_head.weight")


def checkpoint_with(folder: Path, *names: str) -> Checkpoint:
    tensors = {name: np.full((2, 2), index, np.float32) for index, name in enumerate(names)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    return open_checkpoint(str(folder))


def test_bare_names_get_the_name_of_the_model(tmp_path: Path) -> None:
    bare = checkpoint_with(tmp_path, "wte.weight", "h.0.ln_1.weight", "lm_head.weight")
    whole = with_whole_names(bare, WANTED)
    assert sorted(whole.names()) == sorted(WANTED)
    for name in WANTED:
        stored = name.removeprefix("transformer.")
        np.testing.assert_array_equal(whole.read(name), bare.read(stored))
        assert whole.shape(name) == bare.shape(stored)
        assert (whole.dtype(name), whole.nbytes(name)) == ("float32", 16)
        assert whole.packing(name) is None
    assert whole.config == {"model_type": "gpt2"}
    with pytest.raises(CheckpointError):
        whole.read_packed(WANTED[0])
    whole.close()


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (WANTED, WANTED),
        (("wte.weight", "transformer.h.0.ln_1.weight"), WANTED),
        (("something.else", "lm_head.weight"), ("transformer.wte.weight", "lm_head.weight")),
        (("table", "norm.scale"), ("embedding.table", "final_norm.scale")),
    ],
    ids=["whole", "half of them whole", "another model's", "a model without a name"],
)
def test_other_checkpoints_stay_as_they_are(tmp_path: Path, stored: Any, wanted: Any) -> None:
    checkpoint = checkpoint_with(tmp_path, *stored)
    assert with_whole_names(checkpoint, wanted) is checkpoint
    checkpoint.close()
