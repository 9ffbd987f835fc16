"""`rollback`, `versions`, `events`, `logs` and the verbs of saxutil, from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from sax.cli.commands.history import event_row, following, following_log
from sax.cli.main import app
from sax.client import Client
from sax.flags.last_lines import LogLine
from sax.types import Event, Version
from tests.each_case import each_case
from tests.sax.cli.fake_cell import FakeCell
from tests.sax.cli.test_main import MODEL, Sax

OLD, NEW = "a" * 32, "b" * 32


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        running.holds(MODEL)
        running.versions[MODEL] = [
            Version(version=NEW, checkpoint="/two", at_s=2e9, by="ann", current=True),
            Version(version=OLD, checkpoint="/one", overrides={"A": "1"}),
        ]
        running.events = [
            Event(sequence=n, at_s=1e9 + n, kind="update", model_id=MODEL, by="bob", text=f"no {n}")
            for n in range(1, 31)
        ]
        yield running


@pytest.fixture
def sax(cell: FakeCell) -> Sax:
    def run(*words: str, stdin: str | bytes | None = None):
        return CliRunner().invoke(app, ["--admin", cell.address, *words], input=stdin)

    return run


def test_a_rollback_says_where_it_went(cell: FakeCell, sax: Sax) -> None:
    result = sax("rollback", MODEL, OLD)
    assert (result.exit_code, result.stdout) == (0, f"{MODEL} rolls back to version {OLD}\n")
    assert json.loads(sax("rollback", MODEL, "--json").stdout) == {"model": MODEL, "version": OLD}


def test_a_version_may_be_named_by_how_it_begins(cell: FakeCell, sax: Sax) -> None:
    assert sax("rollback", MODEL, "aa").stdout == f"{MODEL} rolls back to version {OLD}\n"
    cell.versions[MODEL].append(Version(version="ab" * 16, checkpoint="/three"))
    result = sax("rollback", MODEL, "a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{OLD} or {'ab' * 16}" in result.stderr
    assert "is not a version" in sax("rollback", MODEL, "c0ffee").stderr


def test_a_rollback_with_wait_returns_when_it_is_ready(sax: Sax) -> None:
    assert sax("rollback", MODEL, "--wait").exit_code == 0


def test_a_version_that_is_none_is_one_line(sax: Sax) -> None:
    result = sax("rollback", MODEL, "latest")
    assert result.exit_code == 1
    assert result.stderr.startswith("sax: 'latest' is not a version")
    assert result.stderr.count("\n") == 1


def test_versions_are_a_table_with_the_current_one_marked(sax: Sax) -> None:
    lines = sax("versions", MODEL).stdout.splitlines()
    assert lines[0].split() == ["VERSION", "MADE", "BY", "CHECKPOINT", "OVERRIDES"]
    assert lines[1].startswith(f"* {NEW}")
    assert lines[1].endswith("ann  /two")
    assert lines[2].split() == [OLD, "-", "-", "/one", "A=1"]


def test_versions_are_json_for_programs(sax: Sax) -> None:
    told = json.loads(sax("versions", MODEL, "--json").stdout)
    assert [(one["version"], one["current"]) for one in told] == [(NEW, True), (OLD, False)]


def test_events_are_a_table_the_newest_first(sax: Sax) -> None:
    lines = sax("events", "--limit", "2").stdout.splitlines()
    assert lines[0].split() == ["NUMBER", "TIME", "WHO", "WHAT", "MODEL", "CHANGE"]
    assert [line.split()[0] for line in lines[1:]] == ["30", "29"]
    assert lines[1].endswith(f"bob  update  {MODEL}  no 30")


def test_events_go_back_page_by_page(sax: Sax) -> None:
    told = json.loads(sax("events", MODEL, "--before", "5", "--limit", "3000", "--json").stdout)
    assert [one["sequence"] for one in told] == [4, 3, 2, 1]


def test_no_events_are_told_in_words(cell: FakeCell, sax: Sax) -> None:
    cell.events = []
    assert sax("events").stdout == "no changes yet\n"


def test_following_goes_on_with_every_new_event(
    cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hundred at once are more than one look asks for."""
    monkeypatch.setattr("sax.cli.commands.history._LOOK_S", 0.01)
    with Client(cell.address) as client:
        told = following(client, MODEL, 2)
        assert [next(told).sequence for _ in range(2)] == [29, 30]
        cell.events += [
            Event(sequence=n, at_s=0, kind="update", model_id=MODEL) for n in range(31, 331)
        ]
        assert [next(told).sequence for _ in range(300)] == list(range(31, 331))


def line(at_s: float, text: str) -> LogLine:
    return LogLine(at_s=at_s, level="info", logger="admin_server", text=text)


def test_logs_are_the_last_lines_of_a_server(cell: FakeCell, sax: Sax) -> None:
    assert sax("logs").stdout == "no lines yet\n"
    cell.logs = {"": [line(1e9, "one"), line(2e9, "two")], "host:1": [line(1e9, "loaded")]}
    (told,) = sax("logs", "--limit", "1").stdout.splitlines()
    assert told.endswith("info admin_server: two")
    assert json.loads(sax("logs", "host:1", "--json").stdout) == [line(1e9, "loaded")]


def test_a_log_is_followed_without_telling_a_line_twice(
    cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sax.cli.commands.history._LOOK_S", 0.01)
    cell.logs[""] = [line(1.0, "one"), line(2.0, "two")]
    with Client(cell.address) as client:
        told = following_log(client, "", client.log())
        assert [next(told)["text"] for _ in range(2)] == ["one", "two"]
        cell.logs[""] = [line(2.0, "two"), line(3.0, "three")]
        assert next(told)["text"] == "three"


def test_follow_and_before_are_a_wrong_command_line(sax: Sax) -> None:
    assert sax("events", "--follow", "--before", "3").exit_code == 2


def test_an_event_of_nobody_in_particular_has_a_dash() -> None:
    assert event_row(Event(sequence=1, at_s=0, kind="publish"))[2] == "-"


@pytest.mark.parametrize("verb", ["update-checkpoint", "update_checkpoint"])
def test_a_checkpoint_is_updated_by_saxutils_verb(cell: FakeCell, sax: Sax, verb: str) -> None:
    assert sax(verb, MODEL, "/models/new").exit_code == 0
    assert cell.models[MODEL].spec.checkpoint == "/models/new"


def test_lm_generate_and_lm_embed_are_what_they_are_in_saxutil(sax: Sax) -> None:
    assert sax("lm.generate", MODEL, "say hello").stdout == "SAY HELLO\n"
    assert sax("lm.embed", MODEL, "abc").stdout == "[3.0]\n"


@pytest.mark.parametrize("verb", ["score", "lm.score"])
def test_lm_score_tells_each_suffix(sax: Sax, verb: str) -> None:
    assert sax(verb, MODEL, "ab", "c", "de").stdout == "-2.000000\n-4.000000\n"
    assert json.loads(sax(verb, MODEL, "ab", "c", "--json").stdout) == [-2.0]


@each_case(
    "words, remedy",
    [
        (("create", "/sax/new", "/data", "acl/all"), "start its admin server"),
        (("delete", "/sax/test"), "stop its admin servers"),
        (("export", "-signatures=a", MODEL, "lm.generate", "/x"), "saxutil export"),
        (("save", MODEL, "/x"), "saxutil save"),
    ],
)
def test_what_saxutil_has_and_we_have_not_says_what_to_do(
    words: tuple[str, ...], remedy: str, sax: Sax
) -> None:
    result = sax(*words)
    assert result.exit_code == 1
    assert remedy in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (("publish", "/sax/test/n", "llama", "None", "--json"), "published"),
        (("update", MODEL, "--replicas", "2", "--json"), "updated"),
        (("unpublish", MODEL, "--json"), "unpublished"),
    ],
)
def test_changes_are_told_as_json_on_demand(sax: Sax, words: tuple[str, ...], done: str) -> None:
    assert json.loads(sax(*words).stdout) == {"model": words[1], "done": done}


def test_an_update_carries_the_revision_it_is_given(cell: FakeCell, sax: Sax) -> None:
    assert sax("update", MODEL, "--replicas", "2", "--revision", "41").exit_code == 0
    assert cell.models[MODEL].spec.revision == 41
    assert "revision:    41" in sax("ls", MODEL).stdout


def test_ls_writes_csv_on_demand(sax: Sax) -> None:
    lines = sax("ls", "--csv").stdout.splitlines()
    assert lines[0] == "MODEL,PATH,CHECKPOINT,READY,STATE,REASON"
    assert lines[1] == f"{MODEL},llama,/c,1/1,ready,"


def test_generate_gives_json_on_demand(sax: Sax) -> None:
    told = json.loads(sax("generate", MODEL, "say hello", "--json").stdout)
    assert told == {
        "text": "SAY HELLO",
        "finish_reason": "stop",
        "stop_reason": None,
        "seed": None,
        "prompt_tokens": 0,
        "completion_tokens": 2,
    }
