"""Views of a checkpoint: tensors hidden or renamed, and never a view of a view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import (
    CheckpointView,
    with_whole_names,
    without,
    without_prefixes,
)
from model_server.checkpoints.opening import open_checkpoint
from sax.errors import CheckpointError
from tests.each_case import each_case

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
    assert whole.config is bare.config
    with pytest.raises(CheckpointError):
        whole.read_packed(WANTED[0])
    whole.close()


@each_case(
    "stored, wanted",
    [
        (WANTED, WANTED),
        (("wte.weight", "transformer.h.0.ln_1.weight"), WANTED),
        (("something.else", "lm_head.weight"), ("transformer.wte.weight", "lm_head.weight")),
        (("table", "norm.scale"), ("embedding.table", "final_norm.scale")),
    ],
)
def test_other_checkpoints_stay_as_they_are(tmp_path: Path, stored: Any, wanted: Any) -> None:
    checkpoint = checkpoint_with(tmp_path, *stored)
    assert with_whole_names(checkpoint, wanted) is checkpoint
    checkpoint.close()


def test_a_view_of_a_view_reads_the_open_checkpoint(tmp_path: Path) -> None:
    opened = checkpoint_with(tmp_path, "wte.weight", "h.0.ln_1.weight", "h.1.a", "h.1.b")
    whole = with_whole_names(without_prefixes(opened, ("h.1.",)), WANTED)
    view = without(whole, {"transformer.wte.weight"})
    assert isinstance(view, CheckpointView)
    assert view.opened is opened
    assert view.names() == ["transformer.h.0.ln_1.weight"]
    np.testing.assert_array_equal(view.read(view.names()[0]), opened.read("h.0.ln_1.weight"))
    assert (view.format, view.folder, view.config) == ("safetensors", tmp_path, opened.config)
    assert view.generation_config == {}
    view.close()
    with pytest.raises(CheckpointError, match="closed"):
        opened.read("wte.weight")


def test_hiding_nothing_changes_nothing(tmp_path: Path) -> None:
    opened = checkpoint_with(tmp_path, "wte.weight")
    assert without_prefixes(opened, ()) is without(opened, ()) is opened
    opened.close()


def test_an_unknown_name_is_reported_with_the_file(tmp_path: Path) -> None:
    opened = checkpoint_with(tmp_path, "wte.weight", "lm_head.weight")
    view = without_prefixes(opened, ("lm_head.",))
    with pytest.raises(CheckpointError, match=f"{tmp_path} has no tensor other"):
        view.read("other")
    view.close()
