"""A cell whose processes and users know each other by certificates, made for the test.

Admin server and model server run in this process, on real ports, with arithmetic models.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import trustme

from admin_server.config import AdminConfig
from admin_server.process import running
from model_server.config import ModelServerConfig
from model_server.process.server import ModelServer
from sax.auth.credentials import acting_as
from sax.auth.security import Security
from sax.client import AsyncClient
from sax.errors import AdminUnavailable, PermissionDenied, Unauthenticated
from sax.types import GenerateRequest, SamplingParams
from tests.admin_server.conftest import FAST
from tests.identities import Identities
from tests.model_server.fake_model import MODEL_PATHS, FakeModels

MODEL = "/sax/test/fake"
VARIABLES = ("SAX_TLS_CA", "SAX_TLS_CERT", "SAX_TLS_KEY", "SAX_TLS_SERVER_NAME", "SAX_TOKEN")


class Authority:
    """Signs certificates and writes them down."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._ca = trustme.CA()
        self.pem = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.pem)

    def sign(self, name: str, *hosts: str) -> tuple[str, str]:
        """The files of a certificate, by its common name, and its key."""
        made = self._ca.issue_cert(
            *(hosts or (f"{name.replace(' ', '-')}.example",)), common_name=name
        )
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        made.cert_chain_pems[0].write_to_path(cert)
        made.private_key_pem.write_to_path(key)
        return str(cert), str(key)


@dataclass
class Secured:
    """A cell with one model, the authority that it trusts, and people with tokens besides."""

    ours: Authority
    theirs: Authority  # another one
    people: Identities
    admin: str
    environment: pytest.MonkeyPatch

    def become(self, name: str, *hosts: str, by: Authority | None = None) -> None:
        """From here on this process shows that certificate when it connects; "": none."""
        for variable in VARIABLES:
            self.environment.delenv(variable, raising=False)
        self.environment.setenv("SAX_TLS_CA", str(self.ours.pem))
        if name:
            cert, key = (by or self.ours).sign(name, *hosts)
            self.environment.setenv("SAX_TLS_CERT", cert)
            self.environment.setenv("SAX_TLS_KEY", key)

    async def publish(self) -> None:
        async with AsyncClient(self.admin) as client:
            await client.publish(MODEL, "fake", "None", 1)

    async def ask(self) -> str:
        sampling = SamplingParams(temperature=0.0, max_tokens=4)
        request = GenerateRequest(model_id=MODEL, prompt="hi", sampling=sampling)
        async with AsyncClient(self.admin) as client:
            return "".join([chunk.text async for chunk in client.generate(request)])


@pytest_asyncio.fixture
async def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Secured]:
    """Its processes call each other by the certificate of "node"."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    people = Identities(tmp_path, "ops")
    cert, key = ours.sign("node", "127.0.0.1")
    security = Security(
        tokens=str(people.path),
        tls_cert=cert,
        tls_key=key,
        tls_ca=str(ours.pem),
        admin_acl="node, ops",
    )
    config = AdminConfig(port=0, status_port=-1, fs_root=str(tmp_path / "state"), security=security)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(running(config, FAST))
        secured = Secured(ours, theirs, people, f"127.0.0.1:{admin.port}", monkeypatch)
        secured.become("node", "127.0.0.1")
        server = ModelServer(
            ModelServerConfig(
                port=0, metrics_port=-1, drain_seconds=0.1, admin=secured.admin, security=security
            ),
            FakeModels(),
            model_paths=lambda: MODEL_PATHS,
            compiles_while_serving=lambda: 0,
        )
        await server.start()
        stack.push_async_callback(server.stop)
        async with AsyncClient(secured.admin) as client:
            await client.publish(MODEL, "fake", "None", 0)
            acls = {"lm.generate": "alice, batch.example"}
            await client.update(MODEL, replicas=1, acls=acls)
            await client.wait_for_ready(MODEL, 1, 60)
        yield secured


async def test_a_certificate_says_who_calls(cell: Secured) -> None:
    cell.become("alice")
    assert await cell.ask()
    with pytest.raises(PermissionDenied, match="alice may not publish"):
        await cell.publish()
    cell.become("bob")
    with pytest.raises(PermissionDenied, match=r"bob may not call lm\.generate"):
        await cell.ask()


async def test_a_name_no_list_could_hold_gives_way_to_the_next_one(cell: Secured) -> None:
    cell.become("A Batch Job!", "batch.example")
    assert await cell.ask()


async def test_who_has_no_certificate_of_ours_is_not_answered(cell: Secured) -> None:
    cell.become("")
    with pytest.raises(AdminUnavailable):
        await cell.ask()
    cell.become("alice", by=cell.theirs)
    with pytest.raises(AdminUnavailable):
        await cell.ask()
    cell.environment.delenv("SAX_TLS_CA")
    cell.environment.delenv("SAX_TLS_CERT")
    cell.environment.delenv("SAX_TLS_KEY")
    with pytest.raises(AdminUnavailable):
        await cell.ask()


async def test_a_server_without_a_certificate_of_ours_is_not_believed(cell: Secured) -> None:
    cell.become("alice")
    cell.environment.setenv("SAX_TLS_CA", str(cell.theirs.pem))
    with pytest.raises(AdminUnavailable):
        await cell.ask()


async def test_a_valid_token_wins_over_the_certificate_and_a_bad_one_loses_the_call(
    cell: Secured,
) -> None:
    cell.become("alice")
    with acting_as(cell.people.tokens["ops"]):
        async with AsyncClient(cell.admin) as client:
            await client.update(MODEL, replicas=1)
            with pytest.raises(PermissionDenied, match="ops may not call"):
                await anext(client.generate(GenerateRequest(model_id=MODEL, prompt="x")))
    with acting_as("sax_withdrawn"):
        async with AsyncClient(cell.admin) as client:
            with pytest.raises(Unauthenticated):
                await client.list(MODEL)
            with pytest.raises(Unauthenticated):
                await anext(client.generate(GenerateRequest(model_id=MODEL, prompt="x")))


async def test_servers_may_go_by_another_name_than_their_address(cell: Secured) -> None:
    cell.become("alice")
    cell.environment.setenv("SAX_TLS_SERVER_NAME", "elsewhere.example")
    with pytest.raises(AdminUnavailable):
        await cell.ask()
    cell.environment.setenv("SAX_TLS_SERVER_NAME", "127.0.0.1")
    assert await cell.ask()
