"""Checkpoints that would never be read to an end."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.end_to_end.cell import Cell
from tests.model_server.checkpoints.tiny_folder import write_json, write_tiny
from tests.tools.stress.row import row

BAD = "/sax/test/hostile"
WEIGHTS = "model.safetensors"
SECONDS = 20.0  # until a publish is refused, the start of the command included


def _fifo(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


def _device(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")


def _long_number(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace(":", ":" + "9" * 4000, 1))


def _long_shape(folder: Path) -> None:
    entry = {"dtype": "F32", "shape": [2**62] * 200_000, "data_offsets": [0, 8]}
    header = json.dumps({"model.norm.weight": entry}).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))


def _long_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((90 << 20).to_bytes(8, "little") + b"[" + b"{}," * (30 << 20))


def _many_shards(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    shard_of = {f"tensor{number}": f"{number}.safetensors" for number in range(100_000)}
    write_json(folder / "model.safetensors.index.json", {"weight_map": shard_of})


def _growing(steps: list[dict[str, Any]]) -> Callable[[Path], None]:
    """A tokenizer that makes gigabytes of a short text."""

    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        normalizer = {"type": "Sequence", "normalizers": steps}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": normalizer}))

    return change


_MORE = {"type": "Replace", "pattern": {"String": "q"}, "content": "q" * 100}

HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a FIFO as configuration": (lambda folder: _fifo(folder, "config.json"), "FIFO"),
    "a FIFO as weights": (lambda folder: _fifo(folder, WEIGHTS), "FIFO"),
    "a device as tokenizer": (lambda folder: _device(folder, "tokenizer.json"), "device"),
    "a device as weights": (lambda folder: _device(folder, WEIGHTS), "device"),
    "a number of 4,000 digits": (_long_number, "digits"),
    "a shape of 200,000 numbers": (_long_shape, "damaged"),
    "a header of 90 MiB": (_long_header, "header"),
    "100,000 shards": (_many_shards, "files"),
    "a tokenizer that multiplies a text": (_growing([_MORE] * 5), "at most"),
    "a tokenizer that adds 10 MB": (
        _growing([{"type": "Prepend", "prepend": "b" * 10_000_000}]),
        "at most",
    ),
}


@row(f"{len(HOSTILE)} checkpoints that never end, one after the other")
def endless_checkpoints(cell: Cell) -> str:
    longest_s = 0.0
    for kind, (change, word) in HOSTILE.items():
        with tempfile.TemporaryDirectory() as room:
            folder = write_tiny(Path(room) / "hostile")
            change(folder)
            longest_s = max(longest_s, _refused(cell, folder, kind, word))
    return f"each refused by name within {longest_s:.1f} s"


def _refused(cell: Cell, folder: Path, kind: str, word: str) -> float:
    """Publish it; return the seconds until the reason was told."""
    began_s = time.monotonic()
    published = cell.sax("publish", BAD, "auto", str(folder), "1")
    assert published.returncode == 0, published.stderr
    try:
        reason = cell.eventually(lambda: _reason(cell), f"a reason for {kind}", within_s=SECONDS)
    finally:
        cell.sax("unpublish", BAD)
    assert "hostile" in reason, f"{kind}: {reason}"
    assert word in reason, f"{kind}: {reason}"
    return time.monotonic() - began_s


def _reason(cell: Cell) -> str:
    replicas = cell.listed(BAD)["replicas"]
    text = replicas[0]["reason"] if replicas else ""
    return text if "load failed" in text else ""
