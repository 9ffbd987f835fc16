"""Reads the config.json of a Hugging Face folder and maps newer keys to their older names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_server.checkpoints.json_file import read_json
from sax.errors import CheckpointError


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises CheckpointError if it is missing or has no model_type."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} has no model_type")
    # Newer files say dtype for torch_dtype, and rope_parameters for rope_theta and rope_scaling.
    if "torch_dtype" not in config and "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" not in config:
        config["rope_theta"] = rope.get("rope_theta", 10000.0)
        scaled = rope.get("rope_type", "default") != "default"
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        config["rope_scaling"] = rest if scaled else None
    return config
