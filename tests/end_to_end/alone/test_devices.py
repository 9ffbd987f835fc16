"""A mesh of several devices behind the same HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.cell import MODEL_SERVER, Cell, local_plan
from tests.end_to_end.conftest import FLAGS
from tests.end_to_end.plain.test_formats import CASE


@pytest.mark.nightly  # a minute; meshes of every family are compared in tests/model_server/models
def test_four_devices_give_the_references_text(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")
    monkeypatch.setenv("NPROC", "16")  # threads for four devices that wait for each other
    with Cell(local_plan(tmp_path, *FLAGS)) as wide:
        wide.publish(str(gguf), overrides={"DTYPE": "float32"})
        assert wide.text(CASE["prompt"], max_tokens=len(CASE["ids"])) == CASE["text"]
        assert "'model': 4" in wide.log(MODEL_SERVER)
