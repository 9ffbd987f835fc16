"""One model in every format: converted, inspected, published, and the same text each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import Cell

MODEL = "/sax/test/converted"
GOLDEN: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "golden" / "smollm2_greedy.json").read_text()
)["cases"]
CASE = next(case for case in GOLDEN if case["name"] == "story")

# Name of what is written, flags of `sax convert`, some of the files that must be there.
FORMATS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "Hugging Face": ("folder", (), ("config.json", "model.safetensors", "tokenizer.json")),
    "GGUF": ("smollm2.gguf", ("--dtype", "float32"), ("",)),
    "shards": (
        "shards",
        ("--max-shard-size", "150MB"),
        ("model.safetensors.index.json", "model-00001-of-00004.safetensors"),
    ),
    "Orbax": ("orbax", ("--to", "orbax"), ("config.json", "tokenizer.json", "_METADATA")),
}


@pytest.fixture(scope="module")
def converted(
    cell: Cell, gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The demo model in another format; each is made of the one before it in FORMATS."""
    room = tmp_path_factory.mktemp("formats")

    def of(kind: str) -> Path:
        name, flags, _ = FORMATS[kind]
        if not (room / name).exists():
            before = list(FORMATS).index(kind) - 1
            source = gguf if before < 0 else of(list(FORMATS)[before])
            result = cell.sax("convert", str(source), str(room / name), *flags)
            assert result.returncode == 0, result.stderr
        return room / name

    return of


@pytest.mark.nightly  # a minute each; the README's commands convert and serve in every run
@pytest.mark.parametrize("kind", FORMATS)
def test_a_converted_model_serves_the_references_text(
    cell: Cell, converted: Callable[[str], Path], kind: str
) -> None:
    path = converted(kind)
    for name in FORMATS[kind][2]:
        assert (path / name).is_file(), sorted(each.name for each in path.iterdir())
    inspected = cell.sax("inspect", str(path))
    assert inspected.returncode == 0, inspected.stdout
    assert "it would load" in inspected.stdout
    cell.publish(str(path), model=MODEL, model_path="auto", overrides={"DTYPE": "float32"})
    try:
        assert cell.text(CASE["prompt"], model=MODEL, max_tokens=len(CASE["ids"])) == CASE["text"]
    finally:
        cell.sax("unpublish", MODEL)


def test_a_source_that_is_not_there_is_told_in_one_line(cell: Cell, tmp_path: Path) -> None:
    result = cell.sax("convert", "/nowhere.gguf", str(tmp_path / "out"))
    assert result.returncode == 1
    assert "/nowhere.gguf" in result.stderr
    assert "Traceback" not in result.stderr
