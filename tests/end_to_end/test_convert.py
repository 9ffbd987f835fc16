"""A Hugging Face folder made by `sax convert` serves the same text as the GGUF file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.cell import Cell

pytestmark = pytest.mark.timeout(900)

MODEL = "/sax/test/converted"
PROMPT = "The capital of France is"


def test_a_converted_model_serves_the_same_text(served: Cell, gguf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "smollm2"
    converted = served.sax("convert", str(gguf), str(folder))
    assert converted.returncode == 0, converted.stderr
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (folder / name).is_file(), name
    inspected = served.sax("inspect", str(folder))
    assert inspected.returncode == 0, inspected.stdout
    assert "it would load" in inspected.stdout
    served.publish(str(folder), model=MODEL)
    try:
        assert served.text(PROMPT, model=MODEL, max_tokens=16) == served.text(PROMPT, max_tokens=16)
    finally:
        served.sax("unpublish", MODEL)


def test_a_source_that_is_not_there_is_told_in_one_line(served: Cell, tmp_path: Path) -> None:
    result = served.sax("convert", "/nowhere.gguf", str(tmp_path / "out"))
    assert result.returncode == 1
    assert "/nowhere.gguf" in result.stderr
    assert "Traceback" not in result.stderr
