"""With roots, checkpoints and all that their links lead to must lie below one."""

from pathlib import Path

import pytest

from model_server.checkpoints.roots import CheckpointRoots
from sax.errors import CheckpointError
from tests.each_case import each_case


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    return put_inside(tmp_path)


def put_inside(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    (tmp_path / "secret").touch()
    return folder


def roots(tmp_path: Path) -> CheckpointRoots:
    return CheckpointRoots((str(tmp_path / "models"), "gs://bucket/models/"))


def test_without_roots_every_place_is_allowed() -> None:
    CheckpointRoots(()).check("/etc")
    CheckpointRoots(()).check("gs://bucket")


def test_what_lies_below_a_root_is_allowed(tmp_path: Path, inside: Path) -> None:
    (inside / "weights").symlink_to(inside / "config.json")
    for path in (inside, inside.parent, inside / "config.json", f"file://{inside}"):
        roots(tmp_path).check(str(path))
    for url in ("gs://bucket/models", "gs://bucket/models/a/b"):
        roots(tmp_path).check(url)


@each_case(
    "path",
    [
        "{tmp}",
        "{tmp}/models/../secret",
        "{tmp}/modelsbeside",
        "{tmp}/link",
        "{tmp}/models/out",
        "gs://bucket",
        "gs://bucket/models-beside",
        "gs://bucket/models/../other",
        "s3://bucket/models",
        "https://bucket/models",
    ],
)
def test_what_lies_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    put_inside(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "models" / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="not below --checkpoint_roots") as caught:
        roots(tmp_path).check(path.format(tmp=tmp_path))
    assert caught.value.param == "checkpoint"


@pytest.mark.parametrize("name", ["config.json", "1_Pooling/config.json"])
def test_a_file_that_leads_elsewhere_is_refused(tmp_path: Path, inside: Path, name: str) -> None:
    link = inside / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="leads to .*secret, which is not below"):
        roots(tmp_path).check(str(inside))
