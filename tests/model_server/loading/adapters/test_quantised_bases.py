"""Adapters on quantised bases, against the same numbers unquantised with the adapter merged."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_server.loading.loaded import Loaded, LoadedAdapter
from model_server.loading.loader import ModelLoader, make_loader
from model_server.plan.checkpoint.convert import convert
from tests.model_server.checkpoints.adapter_folder import merged, write_adapter
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.adapters.asker import (
    CONFIG,
    Asker,
    adapter_spec,
)
from tests.model_server.loading.loads import quiet, spec_of

pytestmark = pytest.mark.timeout(600)

FLOAT = {"DTYPE": '"float32"'}
ROOM = {**FLOAT, "MAX_ADAPTERS": "2", "MAX_ADAPTER_RANK": "4"}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}  # whole blocks of 32 numbers


def loaded_base(loader: ModelLoader, name: str, path: Path, **overrides: str) -> Asker:
    loaded = loader(spec_of(path, name=name, **overrides), quiet)
    assert isinstance(loaded, Loaded)
    return Asker(loaded)


def adapted_answers(
    loader: ModelLoader, base: Path, adapter: Path, **overrides: str
) -> list[list[int]]:
    """Ask the base and its adapter, in one batch."""
    asker = loaded_base(loader, "base", base, **ROOM, **overrides)
    try:
        held = loader(adapter_spec("adapter", adapter), quiet)
        assert isinstance(held, LoadedAdapter)
        asker.salts[held.place] = "adapter"
        return asker.answers(0, held.place)
    finally:
        asker.engine.close()


def plain_answer(loader: ModelLoader, path: Path) -> list[int]:
    asker = loaded_base(loader, "plain", path, **FLOAT)
    try:
        return asker.answers(0)[0]
    finally:
        asker.engine.close()


@pytest.mark.nightly
def test_an_adapter_of_a_quantised_gguf_file_answers_as_its_merged_checkpoint(
    tmp_path: Path,
) -> None:
    write_tiny(tmp_path / "whole", **SIZES)
    file, folder = tmp_path / "base.gguf", tmp_path / "dequantised"
    convert(str(tmp_path / "whole"), str(file), dtype="q4_0")
    convert(str(file), str(folder))
    adapter = write_adapter(tmp_path / "adapter", folder, rank=3)
    whole = merged(tmp_path / "merged", folder, adapter)
    loader = make_loader(CONFIG)
    own, adapted = adapted_answers(loader, file, adapter, QUANTIZE='"stored"')
    assert own == plain_answer(loader, folder)
    assert adapted == plain_answer(loader, whole)
    assert own != adapted
