"""A plan of a model on a hub reads its configuration there, and no weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_server.plan.checkpoint.inspect import inspect
from model_server.plan.model import open_model
from tests.model_server.checkpoints.hub.fake_hub import running_hub, use_hub
from tests.model_server.checkpoints.tiny_folder import CONFIG, write_tiny


def test_a_plan_fetches_the_configuration_and_an_inspection_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tiny"
    write_tiny(folder)
    with running_hub() as hub:
        hub.push("acme/tiny", {each.name: each.read_bytes() for each in folder.iterdir()})
        use_hub(hub, tmp_path / "cache", monkeypatch)
        with open_model("acme/tiny") as planned:
            assert planned.title == "hf://acme/tiny"
            assert planned.config is not None
            assert planned.config["hidden_size"] == CONFIG["hidden_size"]
            assert planned.checkpoint is None
        assert hub.fetched == ["config.json"]
        report = inspect("acme/tiny")
        assert report.loads, report.problems
        assert report.format == "safetensors"
        assert "model.safetensors" in hub.fetched
