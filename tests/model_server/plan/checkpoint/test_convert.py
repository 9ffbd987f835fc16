"""A converted checkpoint is the same checkpoint, and a failed conversion leaves nothing."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.plan import commands
from model_server.plan.checkpoint.convert import (
    FORMATS,
    MAX_SHARD,
    NUMBER_FORMATS,
    convert,
    size_of,
)
from sax.command import run_alone
from sax.errors import CheckpointError
from sax.types import Message, Progress
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import (
    CONFIG,
    random_weights,
    write_json,
    write_tiny,
)

TEXTS = ("the 1234 é🙂", "<|turn|>", " t", "<tool>")


@pytest.mark.parametrize("way", ["orbax gguf huggingface", "gguf orbax huggingface orbax gguf"])
def test_every_format_becomes_every_other(folder: Path, tmp_path: Path, way: str) -> None:
    here = folder
    for number, to in enumerate(way.split()):
        there = tmp_path / f"{number}{'.gguf' if to == 'gguf' else ''}"
        convert(str(here), str(there), to=to)
        here = there
        assert open_checkpoint(str(here)).format == to.replace("huggingface", "safetensors")
    before, after = open_checkpoint(str(folder)), open_checkpoint(str(here))
    assert after.config == before.config
    for name in before.names():
        np.testing.assert_array_equal(after.read(name), before.read(name))
    template = after.chat_template()
    assert template is not None
    assert template.render([Message("user", "hi")]).startswith("<|turn|>user")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_round_trip_through_gguf_changes_nothing(tmp_path: Path, dtype: str, tied: bool) -> None:
    first = write_tiny(tmp_path / "a", dtype=dtype, tie_word_embeddings=tied)
    convert(str(first), str(tmp_path / "b.gguf"))
    convert(str(tmp_path / "b.gguf"), str(tmp_path / "c"))
    before, after = open_checkpoint(str(first)), open_checkpoint(str(tmp_path / "c"))
    assert after.config == before.config
    for name in before.names():
        np.testing.assert_array_equal(after.read(name), before.read(name))
    assert after.tokenizer().eos_ids == before.tokenizer().eos_ids
    assert after.tokenizer().bos_id == before.tokenizer().bos_id
    for text in TEXTS:
        assert after.tokenizer().encode(text) == before.tokenizer().encode(text)
        assert after.tokenizer().encode_chat(text) == before.tokenizer().encode_chat(text)
    chat = [Message("user", "hi <|stop|>")]
    one, other = before.chat_template(), after.chat_template()
    assert one is not None
    assert other is not None
    assert one.render(chat) == other.render(chat)


def test_other_programs_can_read_the_folder(gguf_file: Path, tmp_path: Path) -> None:
    convert(str(gguf_file), str(tmp_path / "out"))
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    weights = random_weights(CONFIG)
    assert loaded.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(loaded[name], values)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_narrower_format_rounds_once(folder: Path, tmp_path: Path, dtype: str) -> None:
    convert(str(folder), str(tmp_path / "out"), dtype=dtype)
    out = open_checkpoint(str(tmp_path / "out"))
    assert out.config["torch_dtype"] == dtype
    for name, values in random_weights(CONFIG).items():
        np.testing.assert_array_equal(out.read(name), values.astype(np.dtype(dtype)))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ],
)
def test_stretched_positions_survive(tmp_path: Path, scaling: dict[str, object]) -> None:
    folder = write_tiny(tmp_path / "a", rope_scaling=scaling, rope_theta=500000.0)
    convert(str(folder), str(tmp_path / "b.gguf"))
    read = open_checkpoint(str(tmp_path / "b.gguf"))
    assert read.config["rope_scaling"] == scaling
    assert sorted(read.names()) == sorted(open_checkpoint(str(folder)).names())


def test_generation_settings_are_kept_in_a_folder(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), str(tmp_path / "out"))
    kept = open_checkpoint(str(tmp_path / "out")).generation_config
    assert kept == {"temperature": 0.6, "eos_token_id": [2, 0], "bos_token_id": 1}


def test_progress_counts_every_tensor(folder: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    convert(str(folder), str(tmp_path / "out"), report=seen.append)
    total = len(random_weights(CONFIG))
    assert [progress.done for progress in seen] == [*range(total + 1)]
    assert {(progress.total, progress.unit) for progress in seen} == {(total, "tensors")}


@pytest.mark.parametrize("name", ["taken", "taken.gguf"])
def test_nothing_is_overwritten(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(CheckpointError, match="already exists"):
        convert(str(folder), str(tmp_path / name))
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["out", "out.gguf"])
def test_a_failed_conversion_leaves_nothing(folder: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / "new" / name

    def stop_half_way(progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(folder), str(place), report=stop_half_way)
    assert list(place.parent.iterdir()) == []


def test_numbers_too_large_for_the_format_are_refused(folder: Path, tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    weights["model.norm.weight"][0] = 1e6
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds numbers too large"):
        convert(str(folder), str(tmp_path / "out"), dtype="float16")
    convert(str(folder), str(tmp_path / "out"), dtype="bfloat16")


def test_what_gguf_has_no_words_for_is_refused(folder: Path, tmp_path: Path) -> None:
    write_json(folder / "config.json", CONFIG | {"model_type": "mamba"})
    with pytest.raises(CheckpointError, match="'mamba' model cannot be written as GGUF"):
        convert(str(folder), str(tmp_path / "out.gguf"))
    odd = CONFIG | {"rope_scaling": {"rope_type": "longrope"}}
    write_json(folder / "config.json", odd)
    with pytest.raises(CheckpointError, match="longrope"):
        convert(str(folder), str(tmp_path / "out.gguf"))
    assert not (tmp_path / "out.gguf").exists()


def test_a_destination_that_cannot_be_written_is_a_checkpoint_error(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        convert(str(folder), str(tmp_path / "file" / "out"))


@each_case(
    "destination, options, words",
    [
        ("gs://bucket/x", {}, "written to local paths"),
        ("x.gguf", {"to": "orbax"}, "name of a GGUF file, but --to is orbax"),
        ("x", {"dtype": "q8_0"}, "q8_0 is only for GGUF files"),
    ],
)
def test_what_contradicts_itself_is_refused(
    folder: Path, tmp_path: Path, destination: str, options: dict[str, str], words: str
) -> None:
    place = destination if "://" in destination else str(tmp_path / destination)
    with pytest.raises(CheckpointError, match=words):
        convert(str(folder), place, **options)  # pyright: ignore[reportArgumentType]


def test_sizes_are_read_as_people_write_them() -> None:
    assert [size_of(text) for text in ("5GB", "2.5 mb", "123", "7B")] == [
        5 * 10**9,
        2_500_000,
        123,
        7,
    ]
    for text in ("", "0", "GB", "-1GB", "1e9", "5 gigabytes", "0.1"):
        with pytest.raises(CheckpointError, match="500MB"):
            size_of(text)


def converted(words: list[str]) -> int:
    """Run the command and return its exit status."""
    return run_alone(commands.convert, "sax convert", words)


def test_the_command_writes_shards_and_orbax(folder: Path, tmp_path: Path) -> None:
    assert (
        run_alone(
            commands.convert,
            "sax convert",
            [str(folder), str(tmp_path / "a"), "--max-shard-size", "5KB"],
        )
        == 0
    )
    assert len(list((tmp_path / "a").glob("*.safetensors"))) > 1
    assert (
        run_alone(
            commands.convert,
            "sax convert",
            [str(tmp_path / "a"), str(tmp_path / "b"), "--to", "orbax"],
        )
        == 0
    )
    assert open_checkpoint(str(tmp_path / "b")).format == "orbax"
    assert (
        run_alone(
            commands.convert,
            "sax convert",
            [str(folder), str(tmp_path / "c"), "--max-shard-size", "much"],
        )
        == 1
    )
    assert not (tmp_path / "c").exists()


def test_the_command_converts_and_says_what_went_wrong(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run_alone(
            commands.convert,
            "sax convert",
            [str(folder), str(tmp_path / "out"), "--dtype", "bfloat16"],
        )
        == 0
    )
    assert open_checkpoint(str(tmp_path / "out")).config["torch_dtype"] == "bfloat16"
    assert "tensors" in capsys.readouterr().err
    assert converted([str(folder), str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert "already exists" in captured.err
    assert captured.out == ""


@each_case("option", ["--to", "--dtype"])
def test_a_format_that_is_none_is_a_wrong_command_line(
    option: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert converted([str(folder), str(tmp_path / "out"), option, "zip"]) == 2
    assert f"{option} zip: choose from" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_help_names_every_format_and_the_usual_sizes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert converted(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(each in text for each in (*FORMATS, *NUMBER_FORMATS))
    assert f"[default: {MAX_SHARD // 10**9}GB]" in text
