"""Checkpoints that several files look at."""

from pathlib import Path

import pytest

from model_server.checkpoints.convert import convert
from tests.demo_model import demo_model
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
    """The demo model's GGUF file (`make model`)."""
    return demo_model()
