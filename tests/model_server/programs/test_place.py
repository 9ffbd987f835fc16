"""Sets in folders and buckets: whole, unfinished and damaged ones."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from model_server.checkpoints.orbax.folder import Folder
from model_server.programs.place import SetFolder, beside, open_to_all, sets_at
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.programs.made_here import MANIFEST, entry_of

A = entry_of("a", "a" * 64, b"program a")
B = entry_of("b", "b" * 64, b"program b")
WHOLE = replace(MANIFEST, programs=(A, B))


@pytest.fixture(params=["local", "gs", "s3"])
def where(request: pytest.FixtureRequest, bucket_root: Path, tmp_path: Path) -> str:
    """The same place by each way to it."""
    (bucket_root / "bucket").mkdir(parents=True)
    return str(tmp_path / "sets") if request.param == "local" else f"{request.param}://bucket/sets"


def fill(folder: SetFolder) -> None:
    folder.add(A.file, b"program a")
    folder.add(B.file, b"program b")


def test_a_set_counts_once_it_is_finished(where: str) -> None:
    folder = SetFolder(Folder(where).child("one"))
    fill(folder)
    folder.note(replace(MANIFEST, programs=(A,)))
    assert list(sets_at(where)) == []
    assert folder.entries() == {"a": A}  # for the run that goes on
    folder.finish(WHOLE, ())
    ((found, manifest),) = sets_at(where)
    assert manifest == WHOLE
    assert found.name == "one"
    assert [found.read(entry) for entry in manifest.programs] == [b"program a", b"program b"]
    assert folder.entries() == {"a": A, "b": B}


def test_a_program_that_is_no_longer_listed_goes(tmp_path: Path) -> None:
    folder = SetFolder(Folder(str(tmp_path)))
    fill(folder)
    folder.finish(WHOLE, ())
    folder.finish(replace(MANIFEST, programs=(B,)), folder.entries().values())
    assert sorted(path.name for path in tmp_path.iterdir()) == [B.file, "manifest.json"]


@each_case(
    "body, words",
    [(b"program A", "is damaged"), (b"prog", "has 4 bytes of 9"), (None, "is missing")],
)
def test_a_damaged_program_is_named(tmp_path: Path, body: bytes | None, words: str) -> None:
    folder = SetFolder(Folder(str(tmp_path)))
    if body is not None:
        folder.add(A.file, body)
    with pytest.raises(CheckpointError, match=rf"{A.file} {words}"):
        folder.read(A)


def test_a_manifest_that_cannot_be_read_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "file").write_text("not a set")
    SetFolder(Folder(str(tmp_path / "good"))).finish(WHOLE, ())
    with caplog.at_level(logging.WARNING):
        assert [folder.name for folder, _ in sets_at(str(tmp_path))] == ["good"]
    assert "broken/manifest.json: it is not a manifest" in caplog.text


def test_a_place_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert list(sets_at(str(tmp_path / "none"))) == []
    assert not open_to_all(str(tmp_path / "none"))


def test_a_place_that_everybody_can_write_is_noticed(tmp_path: Path) -> None:
    place = tmp_path / "sets"
    (place / "one").mkdir(parents=True)
    assert not open_to_all(str(place))
    (place / "one").chmod(0o777)
    assert open_to_all(str(place))


def test_programs_lie_in_a_checkpoints_folder_or_beside_its_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("")
    assert beside(str(tmp_path)) == beside(str(tmp_path / "model.gguf"))
    assert beside(str(tmp_path)) == f"{tmp_path}/sax-programs"
    assert beside("gs://bucket/run/3/") == "gs://bucket/run/3/sax-programs"
    assert beside("None") is None
