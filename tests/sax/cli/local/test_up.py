"""`sax up` and `sax demo`: their options make the plan, and what they print about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from sax.cli.local.bring_up import Work, make_folder
from sax.cli.local.cell_plan import CellPlan
from sax.cli.local.demo import names_of, what_next
from sax.cli.local.demo_model import FILE, VARIABLE, model_folder
from sax.cli.local.up import announcement, check_security
from sax.cli.main import app
from sax.cli.publication import parse_publication
from sax.errors import InvalidRequest


def plan(folder: Path, **changes: object) -> CellPlan:
    return CellPlan(folder=folder, compile_cache=folder, **changes)  # pyright: ignore


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAX_TOKEN", "SAX_TOKEN_FILE", "SAX_TOKENS", "SAX_TLS_CERT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[CellPlan]:
    """The plans that were made, in place of running them."""
    plans: list[CellPlan] = []

    async def note(plan: CellPlan, work: Work) -> None:
        plans.append(plan)

    monkeypatch.setattr("sax.cli.local.up.run_cell", note)
    return plans


def options_of(command: str) -> dict[str, object]:
    params = get_group(app).commands[command].params
    return {each.opts[0]: each.default for each in params if each.opts[0].startswith("-")}


def test_a_demo_takes_the_options_of_up_but_its_own_model() -> None:
    up = options_of("up")
    assert up.pop("--publish") is None
    assert options_of("demo") == up
    assert {"--dir", "--port", "--hosts", "--import", "--tokens"} <= up.keys()


@pytest.mark.parametrize("words", [["up"], ["demo", __file__]])
def test_the_options_make_the_plan(planned: list[CellPlan], words: list[str]) -> None:
    given = ["--dir", "d", "--port", "9000", "--import", "mine", "--hosts", "2", "--cell", "/sax/a"]
    made = CliRunner().invoke(app, [*words, *given, "--", "--slots", "8"])
    assert made.exit_code == 0, made.output
    (plan,) = planned
    assert (plan.folder, plan.gateway_port, plan.hosts) == (Path("d"), 9000, 2)
    assert (plan.cell, plan.imports) == ("/sax/a", ("mine",))
    assert plan.model_server_flags == ("--slots", "8")
    assert plan.memory > 0


@pytest.mark.parametrize(
    "words", [["up", "--nonsense"], ["demo", "no-such-file"], ["demo", "--", "--slots", "8"]]
)
def test_a_wrong_command_line_runs_nothing(planned: list[CellPlan], words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2
    assert not planned


def test_a_demo_without_a_checkpoint_takes_that_of_the_environment_or_the_one_that_is_kept(
    planned: list[CellPlan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = model_folder() / FILE
    kept.parent.mkdir(parents=True)
    kept.touch()
    monkeypatch.delenv(VARIABLE, raising=False)
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    monkeypatch.setenv(VARIABLE, __file__)
    assert CliRunner().invoke(app, ["demo"]).exit_code == 0
    assert len(planned) == 2
    monkeypatch.setenv(VARIABLE, "no-such-file")
    assert CliRunner().invoke(app, ["demo"]).exit_code == 2


def test_the_demo_model_has_a_short_name_and_others_their_own() -> None:
    assert names_of(f"/kept/{FILE}", "/sax/test") == ("/sax/test/smollm2", "llama")
    assert names_of("acme/Tiny-1B", "/sax/a") == ("/sax/a/tiny-1b", "auto")


def test_what_to_try_next_names_the_model_and_sends_a_token_where_one_is_asked(
    tmp_path: Path,
) -> None:
    wanted = parse_publication(["/sax/a/smollm2", "llama", "/m.gguf"])
    text = what_next(plan(tmp_path), wanted)
    assert text.count("curl ") == text.count('"/sax/a/smollm2"') == 5
    assert "Authorization" not in text
    closed = what_next(plan(tmp_path, tokens=tmp_path / "t", admin_acl="ops"), wanted)
    assert closed.count('--header "Authorization: Bearer $SAX_TOKEN"') == 5


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


def test_a_cell_is_closed_by_the_variable_as_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAX_TOKENS", "")
    closed = plan(tmp_path, admin_acl="ops", host="0.0.0.0")
    with pytest.raises(InvalidRequest, match="SAX_TOKEN_FILE"):
        check_security(closed)
    assert capsys.readouterr().err == ""  # it is not open to everyone
    with pytest.raises(InvalidRequest, match="both given"):
        plan(tmp_path, tokens=tmp_path / "t", admin_acl="ops")
    with pytest.raises(InvalidRequest, match="--admin_acl names nobody"):
        plan(tmp_path)


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_open_gateway_that_others_reach_is_told_of_where_the_person_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str, warns: bool
) -> None:
    check_security(plan(tmp_path, host=host))
    assert ("OPEN TO EVERYONE" in capsys.readouterr().err) == warns


def test_the_announcement_says_where_everything_is(tmp_path: Path) -> None:
    assert announcement(plan(tmp_path)).splitlines() == [
        "cell /sax/test is up; Ctrl-C drains and stops it",
        "  gateway       http://127.0.0.1:8888   OpenAI clients: http://127.0.0.1:8888/v1",
        "  admin server  127.0.0.1:10000   status: http://127.0.0.1:10002/",
        "  model server  127.0.0.1:10001   metrics: http://127.0.0.1:10003/metrics",
        f"  logs          {tmp_path / 'logs'}",
    ]


def test_the_announcement_shows_every_model_server_and_its_hosts(tmp_path: Path) -> None:
    text = announcement(plan(tmp_path, servers=2, hosts=4, devices_per_host=2))
    assert text.splitlines()[3:5] == [
        "  model server 0  127.0.0.1:10001   metrics: http://127.0.0.1:10003/metrics   "
        "4 hosts of 2 devices meet at 127.0.0.1:10101",
        "  model server 1  127.0.0.1:10011   metrics: http://127.0.0.1:10013/metrics   "
        "4 hosts of 2 devices meet at 127.0.0.1:10111",
    ]


def test_a_folder_that_cannot_be_made_is_told_with_the_option_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="cannot be made: .*; name another with --dir"):
        make_folder(plan(tmp_path / "file"))
    make_folder(plan(tmp_path / "new" / "cell"))
    assert (tmp_path / "new" / "cell" / "logs").is_dir()


def test_a_checkpoint_that_is_not_here_starts_nothing(planned: list[CellPlan]) -> None:
    made = CliRunner().invoke(app, ["up", "--publish", "m llama /no/such.gguf", "--json"])
    assert made.exit_code == 1
    assert json.loads(made.stdout)["error"]["param"] == "checkpoint"
    assert not planned
