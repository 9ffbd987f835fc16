"""Whatever the path, it opens or says in one sentence why not."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from model_server.checkpoints.checkpoint import ordered_ends
from model_server.checkpoints.opening import open_checkpoint
from sax.errors import CheckpointError
from tests.each_case import each_case
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


@each_case(
    "path, words",
    [
        ("/nowhere/at/all", "does not exist"),
        ("az://bucket/model", r"local paths, and Orbax checkpoints also from gs://"),
        ("\0", "does not exist"),
        ("x" * 5000, "cannot be opened"),
    ],
)
def test_a_bad_path_is_a_checkpoint_error(path: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(path)


def test_a_folder_without_a_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"config\.json and its weights, .* exactly one \.gguf file"
    ):
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


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "weights.pkl", "model.pt", "consolidated.pth"]
)
def test_pickles_are_refused_by_name_and_never_opened(folder: Path, name: str) -> None:
    """The file would say so if anyone unpickled it."""
    (folder / "model.safetensors").unlink()
    witness = folder / "opened"
    (folder / name).write_bytes(f"cbuiltins\nopen\n(V{witness}\nVw\ntR.".encode())
    for path in (folder, folder / name):
        with pytest.raises(
            CheckpointError, match=rf"{name}: such files are Python pickles.*safe_s"
        ):
            open_checkpoint(str(path))
    assert not witness.exists()


def test_safetensors_beside_a_pickle_are_read(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert open_checkpoint(str(folder)).format == "safetensors"


@pytest.mark.parametrize(
    "place", ["../outside.safetensors", "/etc/x.safetensors", "sub/x.safetensors"]
)
def test_an_index_cannot_point_out_of_its_folder(folder: Path, place: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": place}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="no weight_map of tensor names to file names"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_to_itself_is_a_checkpoint_error(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(folder / name)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        open_checkpoint(str(folder)).tokenizer()


def test_a_folder_that_links_to_itself_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(str(tmp_path / "loop"))


@each_case("announced", [100_000_000, 100_000_001, 2**63])
def test_a_huge_header_is_refused_before_it_is_read(folder: Path, announced: int) -> None:
    (folder / "model.safetensors").write_bytes(announced.to_bytes(8, "little") + b"{}")
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="header"):
            open_checkpoint(str(folder))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_everything_wrong_with_the_files_can_be_heard_at_once(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "x", shards=4)
    shards = sorted(folder.glob("*.safetensors"))
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-10])
    shards[2].write_bytes(b"x")
    heard: list[str] = []
    checkpoint = open_checkpoint(str(folder), lambda error: heard.append(error.text))
    assert [shard.name in text for shard, text in zip(shards, heard, strict=False)] == [True] * 3
    assert len(checkpoint.names()) == 10  # of 20: the other two files' headers are whole
