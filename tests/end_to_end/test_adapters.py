"""Adapters of the demo model in a real cell: published, asked, listed, unpublished."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.opening import open_checkpoint
from tests.end_to_end.cell import Cell
from tests.model_server.checkpoints.adapter_folder import write_config

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

BASE = "/sax/test/adapted"
PROMPT = "Once upon a time"


def write_demo_adapter(folder: Path, gguf: Path, seed: int) -> Path:
    """An adapter of rank 2 that changes what the demo model says."""
    folder.mkdir()
    rng, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    base = open_checkpoint(str(gguf))
    for name in base.names():
        module = name.removesuffix(".weight")
        if module.endswith(("q_proj", "v_proj")):
            outputs, inputs = base.shape(name)
            for letter, shape in (("A", (2, inputs)), ("B", (outputs, 2))):
                made = rng.normal(scale=0.1, size=shape).astype(np.float32)
                tensors[f"base_model.model.{module}.lora_{letter}.weight"] = made
    base.close()
    save_file(tensors, folder / "adapter_model.safetensors")
    write_config(folder, rank=2, alpha=4.0, targets=("q_proj", "v_proj"))
    return folder


def test_adapters_are_models_of_their_own_beside_their_base(
    cell: Cell, gguf: Path, tmp_path: Path
) -> None:
    names = [f"/sax/test/adapter-{index}" for index in range(2)]
    early = write_demo_adapter(tmp_path / "0", gguf, 0)
    published = cell.sax("publish", names[0], "lora", str(early), f'BASE="{BASE}"')
    assert published.returncode == 0, published.stderr
    room = {"MAX_ADAPTERS": 2, "MAX_ADAPTER_RANK": 2}
    cell.publish(str(gguf), model=BASE, overrides=room)
    folder = write_demo_adapter(tmp_path / "1", gguf, 1)
    try:
        cell.publish(str(folder), model=names[1], model_path="lora", overrides={"BASE": BASE})
        assert cell.sax("wait", names[0]).returncode == 0
        texts = [cell.text(PROMPT, model=each, max_tokens=12) for each in (BASE, *names)]
        assert len(set(texts)) == 3
        cards = {card["id"]: card for card in cell.http.get("/v1/models").json()["data"]}
        assert [cards[name].get("parent") for name in (BASE, *names)] == [None, BASE, BASE]
        refused = cell.sax("unpublish", BASE)
        assert refused.returncode != 0
        assert f"the base of {names[0]}, {names[1]}" in refused.stderr
    finally:
        for name in (*names, BASE):
            cell.sax("unpublish", name)
