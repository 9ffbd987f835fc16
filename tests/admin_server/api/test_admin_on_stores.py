"""The admin as a process on every kind of store, led there by its environment as operators do."""

import os
import signal

import pytest

from admin_server.__main__ import parse
from sax.client.admin import Admin
from sax.client.location import find_admin
from sax.errors import AdminUnavailable
from sax.proto import admin_pb2
from tests.admin_server.test_process import process
from tests.stores.fixtures import BUCKETS, KEPT


def publishing(name: str) -> admin_pb2.PublishRequest:
    model = admin_pb2.Model(
        model_id=name, model_path="llama", checkpoint_path="/one", requested_num_replicas=1
    )
    return admin_pb2.PublishRequest(model=model)


async def listed(admin: Admin) -> list[str]:
    """Of the admin that can be found now: the last one's address stands for a second."""
    while True:
        try:
            reply = await admin.read("List", admin_pb2.ListRequest(), admin_pb2.ListResponse)
            return [one.model.model_id for one in reply.published_models]
        except AdminUnavailable:
            continue


@pytest.mark.extended
@pytest.mark.parametrize("place", KEPT, indirect=True)
async def test_clients_find_the_admin_by_its_root_and_a_kill_9_loses_nothing(place, monkeypatch):
    root, fs_root = f"{place.url}/sax-root", f"{place.url}/sax-fs-root"
    env = {**os.environ, **place.env}
    flags = ("--sax_root", root, "--store_timeout_s", "60")
    names = [f"/sax/test/m{number}" for number in range(3)]
    monkeypatch.delenv("SAX_ADMIN", raising=False)
    monkeypatch.setenv("SAX_ROOT", root)
    admin = Admin()
    async with process(fs_root, *flags, env=env) as (server, port):
        assert await find_admin(root, cell="test") == f"127.0.0.1:{port}"
        for name in names:
            await admin.change("Publish", publishing(name), admin_pb2.PublishResponse)
        server.send_signal(signal.SIGKILL)
        await server.wait()
    async with process(fs_root, *flags, env=env) as (_, port):
        assert await listed(admin) == names
        assert await find_admin(root) == f"127.0.0.1:{port}"
    await admin.close()


@pytest.mark.parametrize("place", BUCKETS, indirect=True)
def test_the_help_names_every_variable_that_led_to_the_store(place, capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = capsys.readouterr().out
    assert place.env
    assert [name for name in place.env if name not in told] == []
