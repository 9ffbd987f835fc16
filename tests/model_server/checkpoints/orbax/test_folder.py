"""Folders here and in buckets look the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from model_server.checkpoints.orbax.folder import Folder
from sax.errors import CheckpointError
from tests.each_case import each_case

Place = Callable[[Path], str]


@pytest.fixture
def filled(bucket_root: Path) -> Path:
    """A folder inside the bucket."""
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt"):
        path = bucket_root / "bucket" / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return bucket_root / "bucket" / "model"


@pytest.fixture(params=["local", pytest.param("gs", marks=pytest.mark.nightly), "s3"])
def place(request: pytest.FixtureRequest, filled: Path) -> Folder:
    """The same folder by each way to it."""
    if request.param == "local":
        return Folder(str(filled))
    return Folder(f"{request.param}://bucket/model/")


def test_files_are_read_and_listed(place: Folder) -> None:
    assert place.read("a.txt") == b"a.txt"
    assert place.read("nothing.txt") is None
    assert place.read_all(("a.txt", "x", "sub/b.txt")) == {
        "a.txt": b"a.txt",
        "sub/b.txt": b"sub/b.txt",
    }
    assert place.children() == ["a.txt", "sub"]
    assert sorted(place.files()) == ["a.txt", "sub/b.txt", "sub/deep/c.txt"]


def test_files_are_written_replaced_and_removed(place: Folder) -> None:
    new = place.child("new")
    new.write("a.bin", b"one")
    new.write("a.bin", b"another")
    assert new.read("a.bin") == b"another"
    new.remove("a.bin")
    new.remove("a.bin")  # once is enough
    assert new.read("a.bin") is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/sub/a\.bin cannot be written"):
        Folder(str(tmp_path / "file" / "sub")).write("a.bin", b"")


def test_folders_know_their_neighbours(place: Folder) -> None:
    below = place.child("sub")
    assert below.name == "sub"
    assert below.has("nothing", "b.txt")
    assert not below.has("nothing")
    assert below.parent is not None
    assert below.parent.name == "model"
    assert below.parent.read("a.txt") == b"a.txt"


def test_nothing_is_above_a_bucket() -> None:
    top = Folder("gs://bucket/model").parent
    assert top is not None
    assert top.url.rstrip("/") == "gs://bucket"
    assert Folder("gs://bucket").parent is None
    assert Folder("/").parent is None


@each_case("url", ["gs://", "s3:///path", "ftp://host/x"])
def test_what_is_no_place_is_refused(url: str) -> None:
    with pytest.raises(CheckpointError, match="BUCKET"):
        Folder(url)


@pytest.mark.extended
def test_a_server_that_does_not_answer_is_named_within_seconds(
    bucket_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError, match=r"s3://bucket/model/a\.txt cannot be read"):
        Folder("s3://bucket/model").read("a.txt")
