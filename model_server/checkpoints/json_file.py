"""Reads the small text and JSON files beside the weights; errors become CheckpointError."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from model_server.checkpoints.regular_file import read_regular
from sax.errors import CheckpointError

_MOST_BYTES = 1 << 27  # the largest tokenizer.json known has a quarter of them
# Python's parser holds up every other thread until it is done: half a second at these bounds.
MOST_JSON = 1 << 25  # bytes
_MOST_VALUES = 2_000_000
_MOST_NESTED = 1_000_000  # lists and objects
_DIGITS = 40  # of a whole number; 64 bits have half of them


def read_text(path: Path) -> str:
    """Read text. Raises CheckpointError if the file cannot be read or is not UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as exc:
        raise CheckpointError(f"{path} is not UTF-8 text: {exc}") from exc


def read_bytes(path: Path) -> bytes:
    try:
        return read_regular(path, _MOST_BYTES)
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read a JSON object; `missing`, if given, is returned for a file that does not exist."""
    if missing is not None and not path.exists():
        return missing
    try:
        value = parse_json(read_text(path))
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{path} is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def parse_json(text: str, *, unique: bool = False) -> Any:
    """Parse what a stranger wrote. Raises ValueError, or RecursionError if nested too deeply.

    unique: no object may have a name twice, of which parsers take the last.
    """
    if len(text) > MOST_JSON:
        raise ValueError(f"it has {len(text)} characters; at most {MOST_JSON} are read")
    if text.count("{") + text.count("[") > _MOST_NESTED or text.count(",") > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES} values or {_MOST_NESTED} lists")
    return json.loads(
        text, parse_int=_whole_number, object_pairs_hook=_different if unique else None
    )


def _different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {twice!r} twice")
    return found


def _whole_number(text: str) -> int:
    if len(text.removeprefix("-")) > _DIGITS:
        raise ValueError(f"it holds a number of {len(text)} digits, {text[:_DIGITS]}...")
    return int(text)
