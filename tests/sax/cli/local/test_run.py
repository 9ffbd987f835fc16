"""`sax run` in a cell that is there: publishes what is missing, waits, and asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from sax.cli.local.run import find_published, is_published, model_name, to_publish
from sax.cli.main import app
from sax.errors import InvalidRequest, ModelNotFound
from sax.names import ModelId
from sax.types import Message, ModelSpec, Progress, ReplicaStatus, ServableStatus
from tests.each_case import each_case
from tests.sax.cli.fake_cell import FakeCell

Sax = Callable[..., Result]


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        yield running


@pytest.fixture
def sax(cell: FakeCell) -> Sax:
    def run(*words: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, ["run", *words, "--admin", cell.address], input=stdin)

    return run


def test_a_checkpoint_is_published_awaited_and_asked_once(cell: FakeCell, sax: Sax) -> None:
    loading = Progress("downloading", 3 << 20, 9 << 20, "bytes")
    cell.script = [ReplicaStatus(cell.address, ServableStatus.LOADING, "", loading), cell.ready]
    done = sax("acme/Tiny", "-p", "say hello", "--system", "be brief", "--set", "QUANTIZE=null")
    assert (done.exit_code, done.stdout) == (0, "SAY HELLO\n"), done.stderr
    assert "downloading 3 of 9 MiB" in done.stderr
    spec = cell.models["/sax/test/tiny"].spec
    assert (spec.checkpoint, spec.model_path) == ("hf://acme/Tiny", "auto")
    assert spec.overrides == {"QUANTIZE": "null"}
    assert cell.asked[0].prompt == (Message("system", "be brief"), Message("user", "say hello"))
    again = sax("acme/Tiny", "-p", "again", "--set", "QUANTIZE=null")
    assert (again.exit_code, again.stdout) == (0, "AGAIN\n")
    assert "published" not in again.stderr


def test_a_piped_text_is_one_question(cell: FakeCell, sax: Sax) -> None:
    cell.holds("/sax/test/m")
    assert sax("m", stdin="first line\nsecond line\n").stdout == "FIRST LINE SECOND LINE\n"
    assert [each.prompt for each in cell.asked] == [(Message("user", "first line\nsecond line\n"),)]


def test_what_is_neither_published_nor_a_checkpoint_is_told(cell: FakeCell, sax: Sax) -> None:
    done = sax("nothing", "-p", "x")
    assert done.exit_code == 1
    assert "no published model, and no checkpoint" in done.stderr
    assert not cell.models


@pytest.mark.extended
def test_a_cell_that_was_named_and_does_not_answer_is_an_error() -> None:
    done = CliRunner().invoke(app, ["run", "m", "-p", "x", "--admin", "127.0.0.1:9"])
    assert done.exit_code == 1
    assert "127.0.0.1:9 does not answer" in done.stderr


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def spec(model_id: str, checkpoint: str = "/c") -> ModelSpec:
    return ModelSpec(model_id=model_id, model_path="auto", checkpoint=checkpoint, replicas=1)


@each_case(
    "checkpoint, name",
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("hf://acme/1B-Chat@v1:m.gguf", "b-chat"),
        ("./SmolLM2-135M.Q4_1.gguf", "smollm2-135m-q4_1"),
        ("/models/123/", "model"),
    ],
)
def test_a_checkpoint_gives_its_model_a_name(checkpoint: str, name: str) -> None:
    assert model_name(checkpoint) == name


@given(st.text(min_size=1, max_size=40))
def test_every_name_that_is_made_is_a_name(text: str) -> None:
    ModelId.parse(f"/sax/test/{model_name(f'/models/{text}')}")


def test_a_published_model_is_found_by_either_name_and_comes_first() -> None:
    known = [spec("/sax/test/a"), spec("/sax/lab/b"), spec("/sax/test/b")]
    assert find_published("a", known) == find_published("/sax/test/a", known) == "/sax/test/a"
    assert find_published("b", known) is None
    assert find_published("/sax/test/c", known) is None


def test_a_checkpoint_is_published_in_the_cell_of_the_others(tmp_path: Path) -> None:
    file = tmp_path / "Tiny.gguf"
    file.touch()
    wanted = to_publish(str(file), None, {"QUANTIZE": '"int8"'}, [spec("/sax/lab/b")])
    assert (wanted.model_id, wanted.model_path) == ("/sax/lab/tiny", "auto")
    assert (wanted.checkpoint, wanted.overrides) == (str(file), {"QUANTIZE": '"int8"'})
    assert to_publish("acme/tiny", "mine", {}, []).model_id == "/sax/test/mine"
    assert to_publish("acme/tiny", None, {}, []).checkpoint == "hf://acme/tiny"
    for nothing in ("nothing", "/sax/test/gone", "./gone.gguf"):
        with pytest.raises(ModelNotFound, match="no published model, and no checkpoint"):
            to_publish(nothing, None, {}, [])


def test_a_model_that_is_there_already_is_asked_and_another_of_its_name_is_not() -> None:
    wanted = to_publish("acme/tiny", None, {}, [])
    assert not is_published(wanted, [])
    assert is_published(wanted, [spec("/sax/test/tiny", f"hf://acme/tiny@{COMMIT}")])
    with pytest.raises(InvalidRequest, match="with --name"):
        is_published(wanted, [spec("/sax/test/tiny", "/another")])
    version = to_publish("hf://acme/tiny@v2", None, {}, [])
    with pytest.raises(InvalidRequest, match="with --name"):
        is_published(version, [spec("/sax/test/tiny", f"hf://acme/tiny@{COMMIT}")])
