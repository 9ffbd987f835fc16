"""What `sax up` says about who may call, before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from sax.cli.cell_plan import CellPlan
from sax.cli.up import check_security
from sax.errors import InvalidRequest


def plan(folder: Path, **changes: object) -> CellPlan:
    return CellPlan(folder=folder, compile_cache=folder, **changes)  # pyright: ignore


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAX_TOKEN", "SAX_TOKEN_FILE", "SAX_TLS_CERT"):
        monkeypatch.delenv(name, raising=False)


def test_every_process_gets_the_tokens_and_the_servers_their_admins(tmp_path: Path) -> None:
    admin, model, gateway = plan(tmp_path, tokens=tmp_path / "t", admin_acl="ops").children
    for child in (admin, model, gateway):
        assert f"--tokens={tmp_path / 't'}" in child.flags
        assert ("--admin_acl=ops" in child.flags) == (child is not gateway)
    for child in plan(tmp_path).children:
        assert not any("tokens" in flag or "acl" in flag for flag in child.flags)


@pytest.mark.parametrize("changes", [{"tokens": Path("t")}, {"admin_acl": "ops"}])
def test_half_of_it_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        plan(tmp_path, **changes)
    assert refused.value.param == "admin_acl"


def test_a_cell_that_could_not_speak_to_itself_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = plan(tmp_path, tokens=tmp_path / "t", admin_acl="ops")
    with pytest.raises(InvalidRequest, match="SAX_TOKEN_FILE"):
        check_security(closed)
    monkeypatch.setenv("SAX_TOKEN", "x")
    check_security(closed)


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_open_gateway_that_others_reach_is_told_of_where_the_person_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str, warns: bool
) -> None:
    check_security(plan(tmp_path, host=host))
    assert ("OPEN TO EVERYONE" in capsys.readouterr().err) == warns
