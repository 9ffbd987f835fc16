"""The commands from outside: what they print, where, and how they exit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sax.cli.main import app
from sax.types import (
    Autoscaling,
    Image,
    Message,
    Progress,
    ReplicaStatus,
    SamplingParams,
    ServableStatus,
    Sound,
    Video,
)
from tests.sax.cli.fake_cell import FakeCell

MODEL = "/sax/test/m"
Sax = Callable[..., Result]


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        yield running


@pytest.fixture
def sax(cell: FakeCell) -> Sax:
    def run(*words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, ["--admin", cell.address, *words], input=stdin)

    return run


def test_a_publication_is_sent_whole(cell: FakeCell, sax: Sax) -> None:
    result = sax("publish", MODEL, "llama", "None", "2", "NUM_LAYERS=3", 'NAME="x"')
    assert (result.exit_code, result.stdout) == (0, f"published {MODEL}\n")
    spec = cell.models[MODEL].spec
    assert (spec.model_path, spec.checkpoint, spec.replicas) == ("llama", "None", 2)
    assert spec.overrides == {"NUM_LAYERS": "3", "NAME": '"x"'}


def test_an_update_changes_what_is_named_and_nothing_else(cell: FakeCell, sax: Sax) -> None:
    sax("publish", MODEL, "llama", "None", "1", "A=1")
    assert sax("update", MODEL, "--replicas", "3").exit_code == 0
    spec = cell.models[MODEL].spec
    assert (spec.replicas, spec.checkpoint, spec.overrides) == (3, "None", {"A": "1"})


def test_an_update_of_nothing_is_a_wrong_command_line(sax: Sax) -> None:
    assert sax("update", MODEL).exit_code == 2


def test_unpublish_takes_the_model_back(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    assert sax("unpublish", MODEL).exit_code == 0
    assert cell.models == {}


def test_an_error_is_one_line_on_stderr_and_exit_code_1(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    result = sax("publish", MODEL, "llama", "None")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"sax: {MODEL} is published already; use update\n"


def test_an_unknown_model_is_told_the_nearest_one(cell: FakeCell, sax: Sax) -> None:
    cell.holds("/sax/test/smollm2")
    result = sax("ls", "/sax/test/smolm")
    assert result.exit_code == 1
    assert "/sax/test/smollm2" in result.stderr


def test_a_malformed_name_is_refused_before_anything_is_sent(cell: FakeCell, sax: Sax) -> None:
    result = sax("publish", "/sax/m", "llama", "None")
    assert result.exit_code == 1
    assert "/sax/<cell>/<model>" in result.stderr
    assert cell.models == {}


def test_a_wrong_option_is_exit_code_2(sax: Sax) -> None:
    assert sax("generate", MODEL, "x", "--max-tokens", "-1").exit_code == 2
    assert sax("nonsense").exit_code == 2


def test_ls_shows_state_and_reason_of_every_model(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    broken = ReplicaStatus(cell.address, ServableStatus.FAILED, reason="file\n is cut short")
    cell.holds("/sax/test/other", broken)
    heading, first, second = sax("ls").stdout.splitlines()
    assert heading.split() == ["MODEL", "PATH", "CHECKPOINT", "READY", "STATE", "REASON"]
    assert first.split() == [MODEL, "llama", "/c", "1/1", "ready"]
    assert second.endswith("failed  file  is cut short")


def test_ls_of_a_model_shows_its_replicas_and_overrides(cell: FakeCell, sax: Sax) -> None:
    sax("publish", MODEL, "llama", "None", "1", "A=1")
    text = sax("ls", MODEL).stdout
    assert "override:    A=1" in text
    assert cell.address in text


def test_publish_and_ls_warn_of_overrides_without_effect(cell: FakeCell, sax: Sax) -> None:
    path = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
    told = sax("publish", MODEL, path, "None", "1", "BUCKET_KEYS=[128]")
    assert "warning: BUCKET_KEYS has no effect here: prompts of any length" in told.stderr
    assert told.stdout == f"published {MODEL}\n"


def test_ls_and_wait_show_where_a_ready_model_does_not_do_as_its_path_says(
    cell: FakeCell, sax: Sax
) -> None:
    note = "answers are sampled, not searched for"
    cell.holds(MODEL, replace(cell.ready, note=note))
    assert sax("ls").stdout.splitlines()[1].endswith(f"ready  {note}")
    assert f"note:        {note}" in sax("ls", MODEL).stdout
    assert json.loads(sax("ls", MODEL, "--json").stdout)["replicas"][0]["note"] == note
    assert f"note: {note}" in sax("wait", MODEL).stderr


def test_ls_gives_json_for_programs(cell: FakeCell, sax: Sax) -> None:
    compiling = ReplicaStatus(
        cell.address, ServableStatus.LOADING, "", Progress("compiling bucket", 3, 8)
    )
    cell.holds(MODEL, compiling)
    value = json.loads(sax("ls", MODEL, "--json").stdout)
    assert value["ready_replicas"] == 0
    assert value["state"] == "compiling bucket 3 of 8"
    assert value["replicas"][0]["progress"]["done"] == 3
    assert json.loads(sax("ls", "--json").stdout) == [value]


def test_an_empty_cell_says_what_to_do(sax: Sax) -> None:
    assert "sax publish" in sax("ls").stdout
    assert json.loads(sax("ls", "--json").stdout) == []


def test_status_shows_servers_with_their_memory_and_models(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    text = sax("status").stdout
    assert "1.0 of 4.0 GiB  10.0.0.7:10003" in text
    assert f"{MODEL} (loaded)" in text
    told = text.splitlines()
    heading = next(at for at, line in enumerate(told) if line.endswith("KERNELS"))
    assert told[heading + 1].split(None, 2) == [cell.address, MODEL, "avx2, 2 threads"]
    value = json.loads(sax("status", "--json").stdout)
    assert value["servers"][0]["info"]["address"] == cell.address
    assert value["models"][0]["spec"]["model_id"] == MODEL


@pytest.mark.extended
def test_wait_names_every_phase_until_ready(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    loading = ServableStatus.LOADING
    cell.script = [
        ReplicaStatus("", ServableStatus.NONE),
        ReplicaStatus(cell.address, loading, "", Progress("reading weights", 1, 2, "tensors")),
        ReplicaStatus(cell.address, loading, "", Progress("compiling bucket", 3, 8)),
        cell.ready,
    ]
    result = sax("wait", MODEL)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        f"{MODEL}: waiting for a server",
        f"{MODEL}: reading weights 1 of 2 tensors",
        f"{MODEL}: compiling bucket 3 of 8",
        f"{MODEL}: ready",
    ]


def test_wait_for_a_model_that_fails_ends_with_the_reason(cell: FakeCell, sax: Sax) -> None:
    broken = ReplicaStatus(cell.address, ServableStatus.FAILED, reason="m.gguf is cut short")
    cell.holds(MODEL, broken)
    result = sax("wait", MODEL)
    assert result.exit_code == 1
    told = f"sax: {MODEL} failed to load: m.gguf is cut short; `sax update {MODEL} --checkpoint "
    assert told in result.stderr


def test_wait_gives_up_after_its_timeout_with_the_reason(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL, ReplicaStatus("", ServableStatus.NONE, reason="no server has room"))
    result = sax("wait", MODEL, "--timeout", "0.3")
    assert result.exit_code == 1
    assert "no server has room" in result.stderr


def test_publish_with_wait_returns_when_it_is_ready(cell: FakeCell, sax: Sax) -> None:
    result = sax("publish", MODEL, "llama", "None", "--wait")
    assert result.exit_code == 0
    assert f"{MODEL}: ready" in result.stderr


def test_generate_prints_the_answer_and_a_newline(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    options = ("--temperature", "0.5", "--top-k", "3", "--top-p", "0.9", "--seed", "7")
    limits = ("--max-tokens", "9", "--stop", "a", "--stop", "b")
    result = sax("generate", MODEL, "say hello", *options, *limits)
    assert (result.exit_code, result.stdout) == (0, "SAY HELLO\n")
    sampling = cell.asked[0].sampling
    assert sampling.temperature == pytest.approx(0.5)
    assert (sampling.top_k, sampling.seed, sampling.max_tokens) == (3, 7, 9)
    assert sampling.top_p == pytest.approx(0.9)
    assert sampling.stop == ("a", "b")


def test_every_sampling_field_of_the_table_has_an_option(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    asked = {
        "--min-p": "0.25",
        "--typical-p": "0.5",
        "--presence-penalty": "-1.5",
        "--frequency-penalty": "2",
        "--repetition-penalty": "1.5",
        "--logit-bias": "50=-100",
        "--allowed-token-ids": "7",
        "--bad-words": "no",
        "--min-tokens": "2",
        "--stop-token-ids": "9",
    }
    flat = [part for pair in asked.items() for part in pair]
    assert (
        sax("generate", MODEL, "x", *flat, "--ignore-eos", "--logit-bias", "3=1.5").exit_code == 0
    )
    assert cell.asked[0].sampling == SamplingParams(
        temperature=0.0,
        max_tokens=128,
        min_p=0.25,
        typical_p=0.5,
        presence_penalty=-1.5,
        frequency_penalty=2.0,
        repetition_penalty=1.5,
        logit_bias={50: -100.0, 3: 1.5},
        allowed_token_ids=(7,),
        bad_words=("no",),
        min_tokens=2,
        stop_token_ids=(9,),
        ignore_eos=True,
    )


def test_a_bias_that_is_none_is_refused_by_name(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    result = sax("generate", MODEL, "x", "--logit-bias", "no")
    assert result.exit_code == 1
    assert "logit_bias is 'no': give a token id and a number" in result.stderr


def test_generate_reads_the_prompt_from_stdin(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    assert sax("generate", MODEL, "-", "--no-stream", stdin="one two\n").stdout == "ONE TWO\n"
    assert cell.asked[0].prompt == "one two\n"


def test_a_refused_question_is_an_error(cell: FakeCell, sax: Sax) -> None:
    cell.holds("/sax/test/full")
    result = sax("generate", "/sax/test/full", "x")
    assert result.exit_code == 1
    assert "the queue is full" in result.stderr


def test_chat_asks_once_with_an_argument(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    assert sax("chat", MODEL, "hi there", "--system", "be brief").stdout == "HI THERE\n"
    assert cell.asked[0].prompt == (Message("system", "be brief"), Message("user", "hi there"))


def test_chat_carries_the_conversation_along(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    result = sax("chat", MODEL, stdin="hello\n\nagain\n")
    assert (result.exit_code, result.stdout) == (0, "HELLO\nAGAIN\n")
    assert cell.asked[1].prompt == (
        Message("user", "hello"),
        Message("assistant", "HELLO"),
        Message("user", "again"),
    )


def test_images_come_before_the_text_of_the_first_message(
    cell: FakeCell, sax: Sax, tmp_path: Path
) -> None:
    cell.holds(MODEL)
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    for file in files:
        file.write_bytes(file.name.encode())
    options = [option for file in files for option in ("--image", str(file))]
    images = (Image(b"a.png", str(files[0])), Image(b"b.png", str(files[1])))
    assert sax("generate", MODEL, "what is it", *options).stdout == "WHAT IS IT\n"
    assert cell.asked[0].prompt == (Message("user", (*images, "what is it")),)
    assert sax("chat", MODEL, *options, stdin="what\nand now\n").exit_code == 0
    assert cell.asked[2].prompt == (
        Message("user", (*images, "what")),
        Message("assistant", "WHAT"),
        Message("user", "and now"),
    )
    missing = sax("generate", MODEL, "x", "--image", str(tmp_path / "none.png"))
    assert missing.exit_code == 1
    assert "cannot be read" in missing.stderr


@pytest.mark.parametrize(("option", "kind"), [("--audio", Sound), ("--video", Video)])
def test_sounds_and_videos_come_before_the_text_of_the_first_message(
    option: str, kind: type[Sound | Video], cell: FakeCell, sax: Sax, tmp_path: Path
) -> None:
    cell.holds(MODEL)
    file = tmp_path / "a.file"
    file.write_bytes(b"RIFF")
    sound = kind(b"RIFF", str(file))
    assert sax("generate", MODEL, "who", option, str(file)).stdout == "WHO\n"
    assert cell.asked[0].prompt == (Message("user", (sound, "who")),)
    assert sax("chat", MODEL, option, str(file), stdin="who\nand now\n").exit_code == 0
    assert cell.asked[2].prompt[0] == Message("user", (sound, "who"))
    assert cell.asked[2].prompt[2] == Message("user", "and now")
    if kind is Video:
        hearing = (option, str(file), "--audio-in-video")
        assert sax("generate", MODEL, "who", *hearing).stdout == "WHO\n"
        assert sax("chat", MODEL, "who", *hearing).exit_code == 0
        both = Video(b"RIFF", str(file), heard=True)
        assert [each.prompt[0] for each in cell.asked[-2:]] == [Message("user", (both, "who"))] * 2


@pytest.mark.extended
def test_every_command_teaches_by_example() -> None:
    runner = CliRunner()
    commands = "up demo publish update unpublish ls status wait watch generate chat convert inspect"
    for command in commands.split():
        text = runner.invoke(app, [command, "--help"]).stdout
        assert "Example" in text, command
        assert f"sax {command} " in text or f"sax {command}\n" in text, command


def test_an_address_that_is_none_is_told_how_addresses_look() -> None:
    result = CliRunner().invoke(app, ["--admin", "nowhere", "ls"])
    assert result.exit_code == 1
    assert "host:port" in result.stderr


def test_every_text_is_printed_as_a_vector_on_a_line(cell: FakeCell, sax: Sax) -> None:
    cell.holds(MODEL)
    assert sax("embed", MODEL, "a", "abc").stdout == "[1.0]\n[3.0]\n"
    assert sax("embed", MODEL, "a", "-", stdin="four\n\nfifth\n").stdout == "[1.0]\n[4.0]\n[5.0]\n"


def test_images_are_inputs_behind_the_texts(cell: FakeCell, sax: Sax, tmp_path: Path) -> None:
    cell.holds(MODEL)
    (tmp_path / "a.png").write_bytes(b"12345")
    image = ("--image", str(tmp_path / "a.png"))
    assert sax("embed", MODEL, "a", *image).stdout == "[1.0]\n[5.0]\n"
    assert sax("embed", MODEL, *image).stdout == "[5.0]\n"
    [first, second] = sax("rerank", MODEL, "ab", "c", *image).stdout.splitlines()
    assert first.split("\t")[1:] == ["1", str(tmp_path / "a.png")]
    assert second.split("\t")[1:] == ["0", "c"]
    for command in (("embed", MODEL), ("rerank", MODEL, "ab"), ("classify", MODEL)):
        assert sax(*command).exit_code == 2
    assert sax("embed", MODEL, "--image", str(tmp_path / "absent.png")).exit_code == 1


def test_a_custom_request_goes_in_and_out_as_bytes(
    cell: FakeCell, sax: Sax, tmp_path: Path
) -> None:
    cell.holds(MODEL)
    for place in ([], ["-"]):
        result = sax("custom", MODEL, *place, "--method", "m", stdin=b"\x00\xff\n")
        assert result.exit_code == 0, result.stderr
        assert result.stdout_bytes == b"m:\n\xff\x00"
    (tmp_path / "request").write_bytes(b"\xfe1")
    assert sax("custom", MODEL, str(tmp_path / "request")).stdout_bytes == b":1\xfe"
    assert sax("custom", MODEL, str(tmp_path / "absent")).exit_code == 2


def test_autoscaling_is_published_changed_and_ended(cell: FakeCell, sax: Sax) -> None:
    words = ("publish", MODEL, "llama", "None", "--min-replicas", "0", "--max-replicas", "4")
    assert sax(*words, "--target-queue", "2.5").exit_code == 0
    bounds = Autoscaling(min_replicas=0, max_replicas=4, target_queue=2.5)
    assert cell.models[MODEL].spec.autoscaling == bounds
    assert sax("update", MODEL, "--max-replicas", "8").exit_code == 0
    assert cell.models[MODEL].spec.autoscaling == replace(bounds, max_replicas=8)
    assert sax("update", MODEL, "--no-autoscaling").exit_code == 0
    assert cell.models[MODEL].spec.autoscaling is None
    assert sax("update", MODEL, "--no-autoscaling", "--min-replicas", "1").exit_code == 2


def test_ls_counts_against_what_is_wanted_now_and_says_why(cell: FakeCell, sax: Sax) -> None:
    sax("publish", MODEL, "llama", "None", "--min-replicas", "0", "--max-replicas", "4")
    busy = replace(cell.models[MODEL], wanted=3, scaling_reason="queue of 12 for 1 replica")
    cell.models[MODEL] = busy
    assert "1/3" in sax("ls").stdout
    text = sax("ls", MODEL).stdout
    assert "ready:       1 of 3" in text
    assert "autoscaling: 0 to 4 replicas, for a queue of 1 each" in text
    assert "scaling:     queue of 12 for 1 replica" in text
    asleep = replace(busy, replicas=(), wanted=0, scaling_reason="no request for 300 s")
    cell.models[MODEL] = asleep
    _, line = sax("ls").stdout.splitlines()
    assert "0/0" in line
    assert "scaled to zero  no request for 300 s" in line
    assert sax("wait", MODEL).exit_code == 0
