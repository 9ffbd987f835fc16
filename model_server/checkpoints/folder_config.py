"""The config.json of a Hugging Face folder, newer spellings brought to the older ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_server.checkpoints.json_file import read_json
from sax.errors import CheckpointError


def read_config(folder: Path) -> dict[str, Any]:
    """Raises CheckpointError if there is none, or none that says what model it is of."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} does not say its model_type")
    # Newer files say dtype and rope_parameters for what older ones call otherwise.
    if "torch_dtype" not in config and "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" not in config:
        config["rope_theta"] = rope.get("rope_theta", 10000.0)
        scaled = rope.get("rope_type", "default") != "default"
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        config["rope_scaling"] = rest if scaled else None
    return config
