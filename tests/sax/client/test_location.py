"""Where the admin is: said, written in a folder, or written in a bucket."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import obstore
import pytest
import pytest_asyncio
from obstore.store import from_url

from sax.client import location
from sax.client.location import LOCATION, admin_address, cells_below, find_admin, location_folder
from sax.errors import AdminUnavailable, InvalidRequest
from sax.proto import admin_pb2
from tests.stores.fault_proxy import FaultProxy, fault_proxy
from tests.stores.fixtures import BUCKETS
from tests.stores.place import BUCKET, Place


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


# A root in a bucket


def put(root: str, cell: str, data: bytes) -> None:
    store = from_url(root, client_options={"allow_http": True})
    obstore.put(store, f"{location_folder(cell)}/{LOCATION}", data)


def located(address: str) -> bytes:
    return admin_pb2.Location(location=address).SerializeToString()


@pytest.mark.parametrize("place", BUCKETS, indirect=True)
async def test_the_address_is_read_from_a_bucket(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(place.url, "test", located("10.0.0.2:10000"))
    assert admin_address(place.url) == "10.0.0.2:10000"
    assert await find_admin(place.url, cell="test") == "10.0.0.2:10000"
    monkeypatch.setenv("SAX_ROOT", f"{place.url}/")
    assert await find_admin() == "10.0.0.2:10000"


@pytest.mark.parametrize("place", BUCKETS, indirect=True)
async def test_a_bucket_with_several_cells_wants_one_named(place: Place) -> None:
    put(place.url, "one", located("10.0.0.1:1"))
    put(place.url, "two", located("10.0.0.2:2"))
    assert await find_admin(place.url, cell="two") == "10.0.0.2:2"
    with pytest.raises(InvalidRequest, match=r"several cells \(one, two\)"):
        await find_admin(place.url)


@pytest.mark.parametrize("place", BUCKETS, indirect=True)
def test_the_cells_of_a_bucket_are_listed(place: Place) -> None:
    assert cells_below(place.url) == []
    put(place.url, "two", located("10.0.0.2:2"))
    put(place.url, "one", located("10.0.0.1:1"))
    assert cells_below(place.url) == ["one", "two"]


@pytest.mark.parametrize("place", BUCKETS, indirect=True)
async def test_a_bucket_without_a_location_says_what_to_do(place: Place) -> None:
    for cell in (None, "test"):
        with pytest.raises(AdminUnavailable, match=r"no admin server .* SAX_ADMIN=host:port"):
            await find_admin(place.url, cell=cell)


@pytest.mark.parametrize("place", ["gcs"], indirect=True)
async def test_a_broken_location_in_a_bucket_is_named(place: Place) -> None:
    put(place.url, "test", b"\xff\xff\xff")
    with pytest.raises(AdminUnavailable, match=r"sax/test/location\.proto cannot be read"):
        await find_admin(place.url)


@pytest.mark.parametrize("place", ["gcs"], indirect=True)
async def test_a_bucket_that_cannot_be_listed_is_named_with_the_alternative(place: Place) -> None:
    root = place.url.replace(BUCKET, "no-such-bucket")
    with pytest.raises(AdminUnavailable, match=r"no-such-bucket.*SAX_ADMIN=host:port"):
        await find_admin(root)


@pytest.mark.parametrize("root", ["ftp://host/x", "gs://", "nonsense://x"])
async def test_a_url_that_is_no_bucket_is_refused(root: str) -> None:
    with pytest.raises(InvalidRequest, match="is no folder and no bucket"):
        await find_admin(root)


@pytest_asyncio.fixture
async def proxy(moto_place: Place, monkeypatch: pytest.MonkeyPatch):
    async with fault_proxy(moto_place.env["AWS_ENDPOINT_URL"]) as proxy:
        for name, value in proxy.before(moto_place).env.items():
            monkeypatch.setenv(name, value)
        yield proxy


async def put_through(root: str, address: str) -> None:
    """Off the event loop, which the proxy needs."""
    await asyncio.to_thread(put, root, "test", located(address))


@pytest.mark.extended
async def test_many_who_ask_at_once_make_one_look(proxy: FaultProxy, moto_place: Place) -> None:
    root = moto_place.fresh().url
    await put_through(root, "10.0.0.2:10000")
    before = proxy.requests
    found = await asyncio.gather(*(find_admin(root, cell="test") for _ in range(200)))
    assert set(found) == {"10.0.0.2:10000"}
    assert proxy.requests == before + 1


async def test_who_gives_up_does_not_end_the_look_of_others(
    proxy: FaultProxy, moto_place: Place
) -> None:
    root = moto_place.fresh().url
    await put_through(root, "10.0.0.2:10000")
    proxy.mood = "late"
    impatient = asyncio.ensure_future(find_admin(root, cell="test"))
    patient = asyncio.ensure_future(find_admin(root, cell="test"))
    await asyncio.sleep(0.05)
    impatient.cancel()
    assert await patient == "10.0.0.2:10000"


@pytest.mark.extended
async def test_an_admin_that_moved_is_found_and_a_bucket_that_fails_changes_nothing(
    proxy: FaultProxy, moto_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "_FRESH_S", 0.2)
    root = moto_place.fresh().url
    await put_through(root, "10.0.0.1:1")
    assert await find_admin(root, cell="test") == "10.0.0.1:1"
    await put_through(root, "10.0.0.2:2")
    while await find_admin(root, cell="test") != "10.0.0.2:2":  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    proxy.mood = "cut"
    seen = proxy.requests
    while proxy.requests == seen:
        assert await find_admin(root, cell="test") == "10.0.0.2:2"
        await asyncio.sleep(0.05)
    assert await find_admin(root, cell="test") == "10.0.0.2:2"


def test_object_storage_is_not_loaded_by_who_does_not_look_in_a_bucket(tmp_path: Path) -> None:
    write(tmp_path, "test", "10.0.0.2:10000")
    code = (
        "import sys, sax, sax.client, sax.client.location\n"
        f"assert sax.client.location.admin_address({str(tmp_path)!r}) == '10.0.0.2:10000'\n"
        "assert 'obstore' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
