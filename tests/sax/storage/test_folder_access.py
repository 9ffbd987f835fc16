"""A state folder is its owner's alone."""

import os
import stat
from pathlib import Path

from admin_server.process import write_location
from sax.names import CellId
from sax.storage.object_store import open_store


def modes(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode)
        for path in [root, *root.rglob("*")]
    }


def open_to_all(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)


async def test_folders_are_0700_and_files_0600_whatever_the_umask(tmp_path):
    root, umask = tmp_path / "state", os.umask(0)
    try:
        store = open_store(str(root))
        await store.create("sax/test/records/1", b"x")
        await store.replace("sax/test/other", b"x")
    finally:
        os.umask(umask)
    assert set(modes(root).values()) == {0o700, 0o600}


async def test_a_folder_of_an_older_version_is_closed_at_the_start(tmp_path, caplog):
    root = tmp_path / "state"
    await open_store(str(root)).create("sax/test/records/1", b"x")
    open_to_all(root)
    store = open_store(str(root))
    assert set(modes(root).values()) == {0o700, 0o600}
    assert "6 files and folders of" in caplog.text
    assert await store.get("sax/test/records/1") == b"x"
    caplog.clear()
    open_store(str(root))
    assert caplog.text == ""


async def test_a_root_that_holds_other_things_stays_open_and_is_named(tmp_path, caplog):
    await open_store(str(tmp_path)).create("sax/test/records/1", b"x")
    (tmp_path / "letters").write_text("dear")
    open_to_all(tmp_path)
    open_store(str(tmp_path))
    found = modes(tmp_path)
    assert (found["."], found["letters"]) == (0o777, 0o666)
    assert (found["sax"], found["sax/test/records/1"]) == (0o700, 0o600)
    assert f"{tmp_path} and 0 more are open to other users" in caplog.text


async def test_a_link_is_not_followed(tmp_path):
    secret = tmp_path / "elsewhere"
    secret.write_text("x")
    secret.chmod(0o644)
    root = tmp_path / "state"
    await open_store(str(root)).create("sax/test/records/1", b"x")
    (root / "sax/link").symlink_to(secret)
    open_store(str(root))
    assert stat.S_IMODE(secret.stat().st_mode) == 0o644


async def test_clients_of_other_users_can_read_the_location(tmp_path):
    umask = os.umask(0o022)
    try:
        await write_location(str(tmp_path / "root"), CellId("test"), "10.0.0.1:1")
    finally:
        os.umask(umask)
    found = modes(tmp_path / "root")
    assert (found["."], found["sax/test"], found["sax/test/location.proto"]) == (
        0o755,
        0o755,
        0o644,
    )
