"""Saxml's config.proto: written by admin_config, read by an admin server without an --fs_root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from admin_server.__main__ import parse
from admin_server.cell_config import with_configured_root, write_config
from admin_server.config import AdminConfig
from sax.errors import InvalidRequest
from sax.names import CellId
from sax.proto import admin_pb2

ROOT = Path(__file__).parents[2]
CELL = CellId("test")


def configured(root: Path) -> AdminConfig:
    return AdminConfig(cell=CELL, sax_root=str(root))


async def test_an_admin_server_keeps_its_state_where_it_was_configured(tmp_path: Path) -> None:
    await write_config(f"{tmp_path}/", CELL, "/old", "acl/all")
    await write_config(str(tmp_path), CELL, "/state", "acl/all")
    assert (await with_configured_root(configured(tmp_path))).fs_root == "/state"


async def test_an_fs_root_of_its_own_wins(tmp_path: Path) -> None:
    await write_config(str(tmp_path), CELL, "/state", "acl/all")
    for config in (
        AdminConfig(cell=CELL, sax_root=str(tmp_path), fs_root="/own"),
        AdminConfig(cell=CELL, fs_root="/own"),
    ):
        assert await with_configured_root(config) == config


async def test_without_a_configuration_the_default_holds(tmp_path: Path) -> None:
    for config in (configured(tmp_path), AdminConfig(cell=CELL)):
        assert (await with_configured_root(config)).fs_root == AdminConfig().fs_root


async def test_what_cannot_be_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    await write_config(str(tmp_path), CELL, "/state", "acl/all")
    (tmp_path / "sax" / "test" / "config.proto").write_bytes(b"no message")
    with pytest.raises(InvalidRequest, match="run it again, or give --fs_root"):
        await with_configured_root(configured(tmp_path))


@pytest.mark.extended
def test_admin_config_takes_the_line_of_saxmls_image(tmp_path: Path) -> None:
    words = ("--sax_cell=/sax/test", f"--sax_root={tmp_path}", "--fs_root=gs://b/sax-fs-root")
    command = [sys.executable, "-m", "admin_server.cell_config", *words, "--alsologtostderr"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    written = admin_pb2.Config.FromString((tmp_path / "sax/test/config.proto").read_bytes())
    assert (written.fs_root, written.admin_acl) == ("gs://b/sax-fs-root", "acl/all")
    refused = subprocess.run([*command[:3], words[0]], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "--fs_root" in refused.stderr


def test_the_admin_server_takes_the_line_of_saxmls_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAX_ROOT", raising=False)
    words = ["-sax_cell=/sax/cell", "--sax_root=/r", "-port=10001", "--v=3", "--alsologtostderr"]
    config = parse([*words, "--sax_admin_exp_assigner=true"])
    assert (str(config.cell), config.port, config.sax_root) == ("/sax/cell", 10001, "/r")
    assert config.experimental_assigner
    assert (config.logs.v, config.logs.alsologtostderr) == (3, True)
    assert parse(["--sax_root="]).sax_root is None


def test_the_root_may_be_in_the_environment_as_for_saxmls_admin_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SAX_ROOT", "/r")
    assert parse([]).sax_root == "/r"
    assert parse(["--sax_root=/s"]).sax_root == "/s"
