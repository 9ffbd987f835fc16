"""Reads the small text and JSON files beside the weights; errors become CheckpointError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sax.errors import CheckpointError


def read_text(path: Path) -> str:
    """Read text. Raises CheckpointError if the file cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise CheckpointError(f"{path} is not UTF-8 text: {exc}") from exc


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read a JSON object; `missing`, if given, is returned for a file that does not exist."""
    if missing is not None and not path.exists():
        return missing
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value
