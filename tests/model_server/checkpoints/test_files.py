"""Only regular files are opened, and nothing else is waited for."""

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.files import (
    MOST_JSON,
    check_files_below,
    open_regular,
    parse_json,
    read_json,
    read_regular,
)
from model_server.checkpoints.opening import open_checkpoint
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import write_tiny

NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def make_fifo(path: Path) -> str:
    os.mkfifo(path)
    return "a FIFO"


def make_socket(path: Path) -> str:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's address is short
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)
    return "a socket"


def make_device(path: Path) -> str:
    path.symlink_to("/dev/zero")
    return "a device"


def make_folder(path: Path) -> str:
    path.mkdir()
    return "a folder"


STRANGE = (make_fifo, make_socket, make_device, make_folder)
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@each_case("make", STRANGE)
def test_only_a_regular_file_is_opened(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    kind = make(tmp_path / "file")
    with pytest.raises(CheckpointError, match=f"file is {kind}: .* regular files only"):
        open_regular(tmp_path / "file")


@each_case("make", STRANGE)
@each_case("name", FILES)
def test_no_file_of_a_folder_is_waited_for(tmp_path: Path, make, name: str) -> None:  # type: ignore[no-untyped-def]
    folder = write_tiny(tmp_path / "tiny")
    (folder / name).unlink()
    kind = make(folder / name)
    with pytest.raises(CheckpointError, match=f"{name} is {kind}"):
        open_checkpoint(str(folder)).chat_template()


@each_case("make", STRANGE[:3])
def test_no_gguf_file_is_waited_for(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    kind = make(tmp_path / "m.gguf")
    for path in (tmp_path / "m.gguf", tmp_path):
        with pytest.raises(CheckpointError, match=f"gguf is {kind}"):
            open_checkpoint(str(path))


@each_case("make", STRANGE[:3])
def test_no_file_of_an_orbax_checkpoint_is_waited_for(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "manifest.ocdbt").write_bytes(b"")
    (tmp_path / "d").mkdir()
    kind = make(tmp_path / "d" / "0")
    with pytest.raises(CheckpointError, match=f"0 is {kind}"):
        open_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointError, match=f"0 is {kind}"):
        check_files_below(tmp_path)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(CheckpointError, match="5 bytes; at most 4"):
        read_regular(tmp_path / "file", 4)
    os.truncate(tmp_path / "file", 1 << 40)  # without a byte on the disk
    with pytest.raises(CheckpointError, match="at most 4"):
        read_regular(tmp_path / "file", 4)


def test_a_file_of_the_kernel_that_says_it_is_empty_is_read_as_empty() -> None:
    assert Path("/proc/self/status").read_bytes()
    assert read_regular(Path("/proc/self/status"), 1 << 20) == b""


@pytest.mark.extended
@given(VALUES)
def test_what_a_checkpoint_may_hold_is_read(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@each_case(
    "text, words",
    [
        ('{"a": ' + "9" * 4000 + "}", "a number of 4000 digits"),
        ('{"a": -' + "9" * 41 + "}", "a number of 42 digits"),
        ("[" * 100_000, "recursion"),
        ("[" + "{}," * 1_000_000 + "{}]", "values"),
        ("[" + "1," * 2_000_001 + "1]", "values"),
        (" " * (MOST_JSON + 1), "characters"),
    ],
)
def test_what_would_cost_too_much_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"config.json is not JSON.*{words}"):
        read_json(tmp_path / "config.json")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # without a byte on the disk
    with pytest.raises(CheckpointError, match=r"config\.json has \d+ bytes; at most"):
        read_json(path)
