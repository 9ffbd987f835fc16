"""The file of a model's last start: whole, or known to be damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from model_server.programs import last_start
from model_server.programs.last_start import (
    LastStart,
    MadeProgram,
    file_of,
    mark_used,
    read_start,
    write_start,
)
from sax.errors import CheckpointError

START = LastStart("key", {"a": MadeProgram("text", b"body" * 100), "b": MadeProgram("", b"")})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return file_of(tmp_path / "starts", "model")


def test_what_was_written_is_read_and_nothing_else_is_left(path: Path) -> None:
    assert read_start(path) == LastStart()
    write_start(path, START)
    assert read_start(path) == START
    write_start(path, LastStart("other"))
    assert read_start(path) == LastStart("other")
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_was_cut_or_changed_anywhere_is_known(path: Path) -> None:
    write_start(path, START)
    body = path.read_bytes()
    for end in range(0, len(body), 7):
        path.write_bytes(body[:end])
        with pytest.raises(CheckpointError, match="is damaged"):
            read_start(path)
    for place in range(0, len(body), 7):
        path.write_bytes(body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])
        with pytest.raises(CheckpointError, match="is damaged"):
            read_start(path)


def test_a_folder_where_others_can_write_is_not_trusted(path: Path) -> None:
    write_start(path, START)
    path.parent.chmod(0o777)
    with pytest.raises(CheckpointError, match="chmod go-w it"):
        read_start(path)
    with pytest.raises(CheckpointError, match="chmod go-w it"):
        write_start(path, START)


def test_the_files_that_were_used_last_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_start, "_MOST_FILES", 2)
    files = [file_of(path.parent, name) for name in "abc"]
    for age, file in enumerate(files[:2]):
        write_start(file, START)
        os.utime(file, (age, age))
    mark_used(files[0])
    write_start(files[2], START)
    assert sorted(path.parent.iterdir()) == [files[0], files[2]]
