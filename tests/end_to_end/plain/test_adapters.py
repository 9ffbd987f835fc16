"""Adapters of the demo model in a real cell: published, asked, listed, unpublished."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.cell import Cell
from tests.model_server.checkpoints.adapter_folder import write_demo_adapter

pytestmark = pytest.mark.nightly

BASE = "/sax/test/adapted"
PROMPT = "Once upon a time"


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
