"""Whatever the path, it opens or says in one sentence why not."""

from pathlib import Path

import numpy as np
import pytest

from model_server.checkpoints.checkpoint import open_checkpoint, ordered_ends
from sax.errors import CheckpointError
from tests.model_server.checkpoints.tiny_folder import write_tiny


def test_a_folder_opens_as_safetensors(folder: Path) -> None:
    assert open_checkpoint(str(folder)).format == "safetensors"
    assert open_checkpoint(f"file://{folder}").format == "safetensors"


def test_a_gguf_file_and_a_folder_around_it_open(gguf_file: Path, tmp_path: Path) -> None:
    assert open_checkpoint(str(gguf_file)).format == "gguf"
    assert open_checkpoint(str(tmp_path)).format == "gguf"


def test_both_formats_tell_the_same(folder: Path, gguf_file: Path) -> None:
    one, other = open_checkpoint(str(folder)), open_checkpoint(str(gguf_file))
    assert other.config == one.config
    assert sorted(other.names()) == sorted(one.names())
    for name in one.names():
        assert other.shape(name) == one.shape(name) == one.read(name).shape
        assert other.dtype(name) == one.dtype(name) == str(one.read(name).dtype)
        assert other.nbytes(name) == one.nbytes(name) == one.read(name).nbytes
        np.testing.assert_array_equal(other.read(name), one.read(name))
    assert other.tokenizer().eos_ids == one.tokenizer().eos_ids
    assert other.tokenizer().bos_id == one.tokenizer().bos_id


def test_the_end_that_the_configuration_names_comes_first(folder: Path) -> None:
    assert ordered_ends(open_checkpoint(str(folder))) == [2, 0]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/nowhere/at/all", "does not exist"),
        ("gs://bucket/model", "local paths"),
        ("\0", "does not exist"),
        ("x" * 5000, "cannot be opened"),
    ],
)
def test_a_bad_path_is_a_checkpoint_error(path: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(path)


def test_a_folder_without_a_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json or exactly one \.gguf file"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(CheckpointError, match=r"a\.gguf, b\.gguf"):
        open_checkpoint(str(tmp_path))


def test_one_file_of_a_folder_is_not_enough(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="give the folder"):
        open_checkpoint(str(folder / "model.safetensors"))


def test_a_closed_checkpoint_says_so(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_tiny(tmp_path / "x")))
    checkpoint.close()
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.read("model.norm.weight")
