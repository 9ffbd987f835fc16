"""Where the admin is: said, written in a folder, or written in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from sax.errors import AdminUnavailable, InvalidRequest
from sax.location import LOCATION, admin_address, location_folder
from sax.proto import admin_pb2


def write(root: Path, cell: str, address: str) -> None:
    path = root / location_folder(cell) / LOCATION
    path.parent.mkdir(parents=True)
    path.write_bytes(admin_pb2.Location(location=address).SerializeToString())


def test_without_any_hint_the_admin_is_on_this_machine() -> None:
    assert admin_address() == "127.0.0.1:10000"


def test_the_variable_wins_over_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path, "test", "10.0.0.2:10000")
    monkeypatch.setenv("SAX_ROOT", str(tmp_path))
    monkeypatch.setenv("SAX_ADMIN", "10.0.0.1:77")
    assert admin_address() == "10.0.0.1:77"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_address_is_read_from_the_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str
) -> None:
    write(tmp_path, "test", "10.0.0.2:10000")
    monkeypatch.setenv("SAX_ROOT", f"{scheme}{tmp_path}")
    assert admin_address() == "10.0.0.2:10000"
    assert admin_address(f"{scheme}{tmp_path}") == "10.0.0.2:10000"


def test_with_several_cells_the_cell_must_be_named(tmp_path: Path) -> None:
    write(tmp_path, "one", "10.0.0.1:1")
    write(tmp_path, "two", "10.0.0.2:2")
    assert admin_address(str(tmp_path), cell="two") == "10.0.0.2:2"
    with pytest.raises(InvalidRequest, match=r"several cells \(one, two\)"):
        admin_address(str(tmp_path))


def test_a_root_without_a_location_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AdminUnavailable, match="SAX_ADMIN"):
        admin_address(str(tmp_path))


def test_a_broken_location_is_named(tmp_path: Path) -> None:
    path = tmp_path / location_folder("test") / LOCATION
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xff\xff")
    with pytest.raises(AdminUnavailable, match=r"location\.proto"):
        admin_address(str(tmp_path))


@pytest.mark.parametrize(
    "text", ["localhost", "localhost:", ":10000", "host:0", "host:65536", "h:x"]
)
def test_a_malformed_address_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SAX_ADMIN", text)
    with pytest.raises(InvalidRequest, match="host:port"):
        admin_address()
