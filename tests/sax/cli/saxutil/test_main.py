"""saxutil's command lines against a cell on real sockets, as Saxml's documentation writes them."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sax.cli.saxutil.main import run
from sax.proto import admin_pb2
from sax.proto.modelet_pb2 import ExportRequest, SaveRequest
from tests.each_case import each_case
from tests.sax.cli.saxutil.fake_media import FakeMedia
from tests.sax.client.test_blocking_client import Cell
from tests.sax.conftest import MODEL

Saxutil = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    cell = Cell()
    monkeypatch.setenv("SAX_ADMIN", cell.admin.address)
    yield cell
    cell.close()


@pytest.fixture
def saxutil(capsysbinary: pytest.CaptureFixture[bytes]) -> Saxutil:
    def call(*words: str) -> tuple[int, str, str]:
        status = run(words)
        told = capsysbinary.readouterr()
        return status, told.out.decode(), told.err.decode()

    return call


@pytest.fixture
def media() -> Iterator[FakeMedia]:
    with FakeMedia() as running:
        yield running


def cells(table: str) -> list[list[str]]:
    """The rows of a table, headings first."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[each.strip() for each in line.strip("|").split("|")] for line in lines]


def test_generate_prints_a_table_of_scores(cell: Cell, saxutil: Saxutil) -> None:
    status, out, _ = saxutil("lm.generate", "-extra=temperature:0.2", MODEL, "abc")
    assert (status, cells(out)) == (0, [["GENERATE", "SCORE"], ["cba", "-1.5"]])
    assert dict(cell.replica.extra.items) == {"temperature": pytest.approx(0.2)}
    assert cell.replica.lm_calls == ["Generate"]


def test_generate_asks_the_class_for_its_own_settings(cell: Cell, saxutil: Saxutil) -> None:
    saxutil("lm.generate", MODEL, "abc")
    assert not [*cell.replica.extra.items, *cell.replica.extra.tensors, *cell.replica.extra.strings]


def test_terse_prints_texts_and_n_limits_them(cell: Cell, saxutil: Saxutil) -> None:
    assert saxutil("lm.generate", "-terse", "-n", "1", MODEL, "abc")[:2] == (0, "cba\n")


def test_a_query_comes_from_stdin(
    cell: Cell, saxutil: Saxutil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("xyz"))
    assert saxutil("lm.generate", "-terse", MODEL, "-")[1] == "zyx\n"


def test_a_stream_ends_with_its_scores(cell: Cell, saxutil: Saxutil) -> None:
    assert saxutil("lm.generate", "-stream", MODEL, "hi")[:2] == (0, "hi\n\nScores: -1\n")
    assert saxutil("lm.generate", "-stream", "-terse", MODEL, "hi")[0] == 2
    assert saxutil("lm.generate", "-stream", "-n=1", MODEL, "hi")[0] == 2


def test_score_and_embed_print_tables(cell: Cell, saxutil: Saxutil) -> None:
    out = saxutil("lm.score", MODEL, "a", "b", "cd")[1]
    assert cells(out) == [["SUFFIX", "SCORE"], ["b", "-1"], ["cd", "-2"]]
    assert cells(saxutil("lm.embed", MODEL, "abc")[1])[1] == ["abc", "3, 0.5"]


def test_a_gradient_has_a_column_for_each_tensor(cell: Cell, saxutil: Saxutil) -> None:
    out = saxutil("lm.gradient", MODEL, "a", "bcd")[1]
    shown = ", ".join(map(str, range(8)))
    assert cells(out) == [["SCORE", "FEW", "MANY"], ["-3", "0.5", f"{shown}, ..."]]


def test_a_proxy_is_asked_instead_of_the_cell(cell: Cell, saxutil: Saxutil) -> None:
    proxy = f"-proxy={cell.replica.address}"
    status, out, _ = saxutil("lm.generate", proxy, "-terse", "/sax/test/unlisted", "ab")
    assert (status, out) == (0, "ba\n")
    assert not cell.admin.calls


def test_a_model_is_published_listed_changed_and_unpublished(cell: Cell, saxutil: Saxutil) -> None:
    name = "/sax/test/new"
    assert saxutil("publish", name, "llama", "None", "2", "A=1", 'B="x"') == (0, "", "")
    assert dict(cell.admin.models[name].spec.overrides) == {"A": "1", "B": '"x"'}
    assert saxutil("update", "-replicas=3", name) == (0, "", "")
    assert saxutil("update_checkpoint", name, "/b") == (0, "", "")
    spec = cell.admin.models[name].spec
    assert (spec.replicas, spec.checkpoint) == (3, "/b")
    assert saxutil("update", name)[0] == 1
    assert saxutil("ls", "-csv", "/sax/test")[1] == "# #,Model ID\n0,counter\n1,new\n"
    assert saxutil("ls", "/sax")[1].splitlines()[3] == "| 0 | /sax/test |"
    assert saxutil("unpublish", name) == (0, "", "")
    status, _, told = saxutil("ls", name)
    assert status == 1
    assert name in told


def test_ls_of_a_model_has_details_and_acls(cell: Cell, saxutil: Saxutil) -> None:
    saxutil("setacl", MODEL, "lm.generate", "alice")
    out = saxutil("ls", MODEL)[1]
    table = cells(out)
    assert table[0][:4] == ["MODEL", "MODEL PATH", "CHECKPOINT PATH", "# OF REPLICAS"]
    assert table[1][:5] == ["counter", "counter", "None", "1", cell.replica.address]
    assert table[2:] == [["METHOD", "ACL"], ["lm.generate", "alice"]]
    assert cells(saxutil("ls", "-details=false", MODEL)[1])[0] == ["METHOD", "ACL"]
    assert len(cells(saxutil("ls", "-acls=false", MODEL)[1])) == 2
    assert saxutil("ls", "-acls=false", "-details=false", MODEL)[0] == 1
    assert saxutil("ls", "-csv", "-details", "/sax/test")[1].startswith("# #,Model ID,Methods\n")


def test_publish_and_ls_warn_of_overrides_without_effect(cell: Cell, saxutil: Saxutil) -> None:
    path = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
    told = saxutil("publish", "/sax/test/warned", path, "None", "1", "BUCKET_KEYS=[128]")[2]
    assert told.startswith("warning: BUCKET_KEYS has no effect here: ")
    warned = replace(cell.admin.models[MODEL], warnings=("one", "two"))
    cell.admin.models[MODEL] = warned
    assert saxutil("ls", MODEL)[2] == "warning: one\nwarning: two\n"


def test_acls_are_set_and_shown(cell: Cell, saxutil: Saxutil) -> None:
    assert saxutil("getacl", MODEL)[1] == "No admin ACLs set for model.\n"
    assert saxutil("setacl", MODEL, "carol") == (0, "", "")
    assert saxutil("setacl", MODEL, "lm.score", "bob") == (0, "", "")
    assert saxutil("setacl", MODEL, "all", "dan") == (0, "", "")
    assert saxutil("getacl", MODEL)[1] == "carol\n"
    assert saxutil("getacl", MODEL, "all")[1] == "all: dan\nlm.score: bob\n"
    assert saxutil("getacl", MODEL, "lm.score")[1] == "bob\n"
    assert saxutil("getacl", MODEL, "lm.embed")[1] == "No ACLs set for method.\n"
    assert saxutil("getacl", "/sax/test")[1] == "No admin ACLs set for cell.\n"
    assert saxutil("setacl", "/sax/test", "alice") == (0, "", "")
    assert saxutil("getacl", "/sax/test")[1] == "alice\n"


def test_a_root_on_the_command_line_wins_over_the_environment(
    cell: Cell, saxutil: Saxutil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAX_ADMIN", "127.0.0.1:1")
    folder = tmp_path / "sax" / "test"
    folder.mkdir(parents=True)
    location = admin_pb2.Location(location=cell.admin.address)
    (folder / "location.proto").write_bytes(location.SerializeToString())
    status, out, _ = saxutil(f"--sax_root={tmp_path}", "lm.generate", "-terse", MODEL, "ab")
    assert (status, out) == (0, "ba\n")
    (tmp_path / "sax" / "other").mkdir()
    (tmp_path / "sax" / "other" / "location.proto").write_bytes(b"")
    out = saxutil(f"--sax_root={tmp_path}", "ls", "-csv", "/sax")[1]
    assert out == "# #,Cell\n0,/sax/other\n1,/sax/test\n"


def test_a_command_gives_up_after_its_time(cell: Cell, saxutil: Saxutil) -> None:
    cell.do(cell.replica.hold.clear)
    status, _, told = saxutil("--sax_timeout=300ms", "lm.generate", "-stream", MODEL, "hi")
    assert status == 1
    assert "--sax_timeout=600s" in told


@pytest.mark.parametrize(
    "words",
    [
        ("vm.classify", MODEL, "FILE"),
        ("vm.embed", MODEL, "FILE"),
        ("vm.detect", MODEL, "FILE", "cat"),
        ("vm.generate", MODEL, "a cat", "FILE.out"),
        ("am.recognize", "-extra=a:1", MODEL, "FILE"),
        ("mm.generate", MODEL, "text", "@FILE"),
        ("mm.score", MODEL, "a", "b"),
        ("mm.embed", MODEL, "a"),
    ],
)
def test_a_service_that_a_server_has_not_is_its_answer(
    cell: Cell, saxutil: Saxutil, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = tmp_path / "image"
    file.write_bytes(b"xyz")
    status, _, told = saxutil(*(word.replace("FILE", str(file)) for word in words))
    assert status == 1
    assert "Method not found" in told


def test_media_go_to_a_server_that_has_the_services(
    media: FakeMedia, saxutil: Saxutil, tmp_path: Path
) -> None:
    file, proxy = tmp_path / "image", f"-proxy={media.address}"
    file.write_bytes(b"xyz")

    def rows(verb: str, *words: str) -> list[list[str]]:
        status, out, told = saxutil(verb, proxy, MODEL, *words)
        assert (status, told) == (0, "")
        return cells(out)[1:]

    assert rows("vm.classify", str(file)) == [["3 bytes", "-3"]]
    assert media.vision.last.model_key == MODEL
    assert rows("vm.embed", str(file)) == [[str(file), "3"]]
    assert rows("vm.detect", str(file), "cat") == [["0.5", "0.25", "1", "2", "cat", "0", "1,2"]]
    assert rows("am.recognize", str(file)) == [["3 bytes", "-3"]]
    assert rows("mm.generate", "hello", f"@{file}") == [["(image_bytes)", "-2"], ["hello", ""]]
    assert rows("mm.score", "a", "b", "c") == [["21"]]
    assert rows("mm.embed", "a", "b") == [["2"]]
    images = [[str(tmp_path / f"out/000{n}.PNG"), str(-n)] for n in (1, 2)]
    assert rows("vm.generate", "x", str(tmp_path / "out")) == images
    assert (tmp_path / "out/0002.PNG").read_bytes() == b"xx"
    assert saxutil("vm.generate", proxy, MODEL, "x", "-")[1] == "xxx"


@each_case(
    "words, told",
    [
        (("create", "/sax/x", "/tmp", "acl"), "admin server"),
        (("delete", "/sax/x"), "unpublish"),
        (("export", "-rng_seed_mode=odd", MODEL, "lm.score", "/x"), "stateful, stateless, fixed"),
        (("save", "nothing", "/x"), "/sax/"),
        (("getacl", "/sax/test", "all"), "for operators only"),
        (("setacl", "/sax/test", "lm.score", "acl/all"), "for operators only"),
        (("vm.classify", MODEL, "/no/such/file"), "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(
    words: tuple[str, ...], told: str, saxutil: Saxutil
) -> None:
    status, _, err = saxutil(*words)
    assert status == 1
    assert told in err


def test_save_and_export_ask_the_models_server(cell: Cell, saxutil: Saxutil) -> None:
    assert saxutil("save", MODEL, "/checkpoints/m")[0] == 0
    asked = cell.replica.modelet_calls
    assert asked == [SaveRequest(model_key=MODEL, checkpoint_path="/checkpoints/m")]
    assert saxutil("export", "-signatures=a,b", MODEL, "lm.score,lm.score", "/e")[0] == 0
    assert asked[1] == ExportRequest(
        model_key=MODEL,
        method_names=["lm.score", "lm.score"],
        signatures=["a", "b"],
        export_path="/e",
        serialized_model_format=ExportRequest.JAX_EXPORT,
    )


@pytest.mark.parametrize(
    "words",
    [(), ("nosuch",), ("publish", "/sax/test/m"), ("-x", "ls"), ("ls",), ("lm.score", MODEL, "a")],
)
def test_a_wrong_command_line_has_a_status_of_its_own(saxutil: Saxutil, words: Any) -> None:
    status, out, told = saxutil(*words)
    assert (status, out) == (2, "")
    assert told.startswith("saxutil: ")


def test_help_tells_of_commands_and_flags(saxutil: Saxutil) -> None:
    assert "lm.generate" in saxutil("help")[1]
    assert saxutil("--help")[1] == saxutil("help")[1]
    assert "-terse=false" in saxutil("help", "lm.generate")[1]
    assert saxutil("lm.generate", "-help")[1] == saxutil("help", "lm.generate")[1]
    assert "-sax_timeout=60.0" in saxutil("flags")[1]
    assert saxutil("flags", "update")[1].startswith("  -replicas=-1")
    assert {"help", "publish", "mm.generate"} <= {*saxutil("commands")[1].split()}
    assert saxutil("help", "nosuch")[0] == 2


def test_flags_of_gos_logging_are_taken(saxutil: Saxutil) -> None:
    assert saxutil("--alsologtostderr", "-v=1", "commands")[0] == 0


def test_it_runs_as_a_program(cell: Cell) -> None:
    words = [sys.executable, "-m", "sax.cli.saxutil", "lm.generate", "-terse", MODEL, "abc"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("cba\n", "")
