"""A Hugging Face folder reads as it was written, and every damage names the file."""

import contextlib
import json
import resource
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.huggingface.safetensors import SafetensorsCheckpoint
from sax.errors import CheckpointError
from sax.types import Message
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import (
    CHAT,
    CONFIG,
    random_weights,
    tokenizer_json,
    write_json,
    write_tiny,
)
from tests.model_server.models.family_cases import checkpoint_of, config_of

INDEX = "model.safetensors.index.json"


@each_case("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_read_as_they_were_written(tmp_path: Path, dtype: str) -> None:
    checkpoint = SafetensorsCheckpoint(write_tiny(tmp_path / "x", dtype=dtype))
    weights = random_weights(CONFIG, dtype)
    assert sorted(checkpoint.names()) == sorted(weights)
    for name, values in weights.items():
        assert checkpoint.dtype(name) == dtype
        assert checkpoint.nbytes(name) == values.nbytes
        np.testing.assert_array_equal(checkpoint.read(name), values)


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    sharded = SafetensorsCheckpoint(write_tiny(tmp_path / "x", shards=3))
    for name, values in random_weights(CONFIG).items():
        np.testing.assert_array_equal(sharded.read(name), values)


def test_every_end_anyone_names_ends_an_answer(folder: Path) -> None:
    tokenizer = SafetensorsCheckpoint(folder).tokenizer()
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.bos_id == 1
    assert SafetensorsCheckpoint(folder).generation_config["temperature"] == 0.6


def test_the_chat_template_marks_control_tokens_of_its_tokenizer(folder: Path) -> None:
    checkpoint = SafetensorsCheckpoint(folder)
    template = checkpoint.chat_template()
    assert template is not None
    ids = checkpoint.tokenizer().encode_chat(template.render([Message("user", "<|stop|>")]))
    assert ids.count(2) == 1
    assert ids.count(1) == 2


def test_a_template_of_its_own_file_wins(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("own", encoding="utf-8")
    template = SafetensorsCheckpoint(folder).chat_template()
    assert template is not None
    assert template.source == "own"


def test_of_several_templates_the_default_one_is_taken(folder: Path) -> None:
    several = [{"name": "rag", "template": "no"}, {"name": "default", "template": CHAT}]
    write_json(folder / "tokenizer_config.json", {"chat_template": several})
    template = SafetensorsCheckpoint(folder).chat_template()
    assert template is not None
    assert template.source == CHAT


def test_a_model_without_a_template_has_none(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    assert SafetensorsCheckpoint(folder).chat_template() is None


def test_newer_spellings_of_the_configuration_are_understood(folder: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "torch_dtype"}
    del config["rope_theta"], config["rope_scaling"]
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}
    write_json(folder / "config.json", config | {"dtype": "float32", "rope_parameters": rope})
    read = SafetensorsCheckpoint(folder).config
    assert read["torch_dtype"] == "float32"
    assert read["rope_theta"] == 5e5
    assert read["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0}


def test_an_unknown_tensor_is_named(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="no tensor nothing"):
        SafetensorsCheckpoint(folder).read("nothing")


def test_a_tensor_of_another_number_format_is_named(folder: Path) -> None:
    save_file({"model.norm.weight": np.zeros(3, np.int64)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="model.norm.weight .* stored as I64"):
        SafetensorsCheckpoint(folder).read("model.norm.weight")


@each_case("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_tiny(tmp_path / "x")
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        SafetensorsCheckpoint(folder).tokenizer()


@each_case("name", ["config.json", "generation_config.json", "tokenizer.json"])
@each_case("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_json_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_tiny(tmp_path / "x")
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        SafetensorsCheckpoint(folder).tokenizer()


def test_a_truncated_file_names_the_tensor_and_both_sizes(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    with pytest.raises(
        CheckpointError, match="is truncated: tensor '.*' .* ends at byte"
    ) as caught:
        SafetensorsCheckpoint(folder)
    assert str(len(data)) in caught.value.text
    assert str(len(data) - 10) in caught.value.text


def test_a_file_cut_while_it_is_open_is_an_error_not_a_crash(folder: Path) -> None:
    checkpoint = SafetensorsCheckpoint(folder)
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    last = checkpoint.names()[-1]
    with pytest.raises(CheckpointError, match="is truncated"):
        checkpoint.read(last)


def test_a_listed_tensor_that_no_shard_has_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in transformers it is no error, unless the model needs it."""
    folder = write_tiny(tmp_path / "x", shards=2)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.extra"] = "model-00001-of-00002.safetensors"
    write_json(folder / INDEX, index)
    with closing(SafetensorsCheckpoint(folder)) as checkpoint:
        assert "model.extra" not in checkpoint.names()
    assert "lack 1 tensors that it lists, the first is model.extra of model-00001" in caplog.text


def test_a_tensor_counts_wherever_it_lies(tmp_path: Path) -> None:
    """As in transformers: the index may leave one out, or name another shard."""
    folder = write_tiny(tmp_path / "x", shards=2)
    index = json.loads((folder / INDEX).read_text())
    norm = index["weight_map"].pop("model.norm.weight")
    other = next(shard for shard in index["weight_map"].values() if shard != norm)
    moved = next(name for name, shard in index["weight_map"].items() if shard == norm)
    index["weight_map"][moved] = other
    write_json(folder / INDEX, index)
    with closing(SafetensorsCheckpoint(folder)) as checkpoint:
        assert {"model.norm.weight", moved} <= set(checkpoint.names())


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "x", shards=2)
    first, second = sorted(folder.glob("model-*.safetensors"))
    name = sorted(load_file(first))[0]
    save_file(load_file(second) | {name: load_file(first)[name]}, second)
    with pytest.raises(CheckpointError, match=f"1 tensors that another file has, too.*{name}"):
        SafetensorsCheckpoint(folder)


def test_float64_is_read_as_float32(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "x")
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({name: values.astype(np.float64) for name, values in weights.items()}, path)
    with closing(SafetensorsCheckpoint(folder)) as checkpoint:
        for name, values in weights.items():
            assert checkpoint.dtype(name) == "float32"
            found = checkpoint.read(name)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, values)
            into = np.empty(values.shape, np.float32)
            np.testing.assert_array_equal(checkpoint.read(name, None, into), values)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "x", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="00002-of-00002"):
        SafetensorsCheckpoint(folder)


@each_case("place", ["../model.safetensors", "/etc/x.safetensors", 5, None])
def test_an_index_cannot_point_outside_its_folder(tmp_path: Path, place: object) -> None:
    folder = write_tiny(tmp_path / "x", shards=2)
    write_json(folder / INDEX, {"weight_map": {"a": place}})
    with pytest.raises(CheckpointError, match="weight_map"):
        SafetensorsCheckpoint(folder)


def test_no_more_files_are_opened_than_the_process_may_have_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100, 100))
    folder = write_tiny(tmp_path / "x", shards=2)
    shard_of = {f"t{number}": f"{number}.safetensors" for number in range(51)}
    write_json(folder / INDEX, {"weight_map": shard_of})
    with pytest.raises(CheckpointError, match="names 51 files; at most 50"):
        SafetensorsCheckpoint(folder)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300
)
@given(
    flips=st.lists(st.tuples(st.integers(0, 2100), st.integers(1, 255)), max_size=3),
    cut=st.none() | st.integers(0, 4000),
)
def test_garbage_gives_a_checkpoint_error_or_numbers(
    folder: Path, flips: list[tuple[int, int]], cut: int | None
) -> None:
    path = folder / "model.safetensors"
    original = folder / "original"
    if not original.exists():
        original.write_bytes(path.read_bytes())
    data = bytearray(original.read_bytes())
    for place, bits in flips:
        data[place] ^= bits
    path.write_bytes(data[:cut])
    with contextlib.suppress(CheckpointError):
        checkpoint = SafetensorsCheckpoint(folder)
        for name in checkpoint.names():
            assert checkpoint.read(name).shape == checkpoint.shape(name)


def test_the_tokenizer_is_the_one_of_the_folder(folder: Path) -> None:
    assert SafetensorsCheckpoint(folder).tokenizer().serialized == tokenizer_json()


def test_what_transformers_5_writes_reads_like_what_older_ones_wrote() -> None:
    older = SafetensorsCheckpoint(checkpoint_of("llama_llama3_biases")).config
    newer = SafetensorsCheckpoint(checkpoint_of("llama_rope_parameters")).config
    assert "rope_parameters" not in older
    assert "rope_theta" not in config_of("llama_rope_parameters")
    for key in ("rope_theta", "rope_scaling", "torch_dtype"):
        assert newer[key] == older[key]


@each_case("key", ["quantization_config", "compression_config"])
def test_either_key_says_how_weights_are_quantised(
    key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_tiny(tmp_path_factory.mktemp(key) / "x", **{key: {"quant_method": "unheard of"}})
    with pytest.raises(CheckpointError, match="quant_method 'unheard of'"):
        SafetensorsCheckpoint(folder)
