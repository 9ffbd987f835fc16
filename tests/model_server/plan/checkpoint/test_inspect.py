"""`sax inspect` tells what a checkpoint is, and everything that would keep it from loading."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.models.registry import fitting_classes
from model_server.plan import commands
from model_server.plan.checkpoint.convert import convert
from model_server.plan.checkpoint.inspect import inspect
from sax.command import run_alone
from tests.each_case import each_case
from tests.model_server.checkpoints.bucket_server import BucketServer
from tests.model_server.checkpoints.pax_writer import write_arrays
from tests.model_server.checkpoints.tiny_folder import (
    CONFIG,
    CONTROL,
    VOCAB,
    random_weights,
    write_json,
    write_tiny,
)
from tests.model_server.loading.vision.test_vision_loading import write_case
from tests.tools.golden.pax.cases import CASES
from tests.tools.golden.pax.model import variables_of

NUMBERS = sum(values.size for values in random_weights(CONFIG).values())


def test_a_model_of_images_needs_no_tokenizer_but_a_processor(tmp_path: Path) -> None:
    write_case("resnet", folder := tmp_path / "resnet")
    report = inspect(str(folder))
    assert report.problems == []
    assert (report.family, report.path_as) == ("ResNet (images)", "auto")
    assert report.memory == {"float32": 4 * (report.parameters or 0)}
    (folder / "preprocessor_config.json").unlink()
    (problem,) = inspect(str(folder)).problems
    assert "has no preprocessor_config.json" in problem


@pytest.mark.parametrize("name", ["tiny", "tiny.gguf", "orbax"])
def test_every_format_is_described_alike(folder: Path, tmp_path: Path, name: str) -> None:
    if name == "tiny.gguf":
        convert(str(folder), str(tmp_path / name))
    if name == "orbax":
        convert(str(folder), str(tmp_path / name), to="orbax")
    report = inspect(str(tmp_path / name))
    assert report.problems == []
    assert (report.model_type, report.architecture) == ("llama", "LlamaForCausalLM")
    assert report.family is not None
    assert "Llama" in report.family
    assert (report.parameters, report.context, report.vocabulary) == (NUMBERS, 64, VOCAB)
    assert [(kind.kind.lower(), kind.tensors) for kind in report.stored] in (
        [("f32", 20)],
        [("float32", 20)],
    )
    assert sum(kind.bytes for kind in report.stored) == 4 * NUMBERS
    assert sum(file.bytes for file in report.files) > 4 * NUMBERS
    assert report.tokenizer is not None
    assert report.tokenizer.kind == "BPE"
    assert report.tokenizer.vocabulary == (VOCAB if name == "tiny.gguf" else 262)  # GGUF pads
    assert (report.tokenizer.bos, report.tokenizer.eos) == (CONTROL[1], [CONTROL[2], CONTROL[0]])
    assert report.tokenizer.control == sorted(CONTROL)
    assert report.chat_template is not None
    assert "<|turn|>" in report.chat_template
    # Two bytes a matrix number, four a norm's; int8 and int4 add scales.
    assert report.memory["bfloat16"] == 2 * NUMBERS + 2 * 5 * 12
    assert report.memory["int4"] < report.memory["int8"] < report.memory["bfloat16"]


def test_the_text_has_a_line_for_everything(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_alone(commands.inspect, "sax inspect", [str(folder)]) == 0
    text = capsys.readouterr().out
    for part in (
        "Hugging Face folder (safetensors), 1 file",
        "llama (LlamaForCausalLM): served as Llama",
        f"{NUMBERS:,}",
        "20 tensors",
        "64 tokens",
        "BPE, 262 tokens (the model has 264)",
        "start <|turn|>; end <|stop|>, <|end|>",
        "1 line, compiles in the sandbox",
        "as bfloat16",
        "it would load",
    ):
        assert part in text


def test_json_is_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_alone(commands.inspect, "sax inspect", [str(folder), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["loads"] is True
    assert found["parameters"] == NUMBERS
    (folder / "model.safetensors").unlink()
    assert run_alone(commands.inspect, "sax inspect", [str(folder), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["loads"] is False
    assert "model.safetensors" in found["problems"][0]


def test_all_problems_are_in_one_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny(tmp_path / "x", shards=4)
    shards = sorted(folder.glob("*.safetensors"))
    gone = sorted(load_file(shards[0]))
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-10])
    weights = load_file(shards[2])
    misshapen = next(
        name for name in weights if name.endswith(("o_proj.weight", "down_proj.weight"))
    )
    integers = next(name for name in weights if name != misshapen)
    weights[misshapen] = np.zeros((3, 3), np.float32)
    weights[integers] = weights[integers].astype(np.int32)
    save_file(weights | {"model.extra.weight": np.zeros(2, np.float32)}, shards[2])
    (folder / "tokenizer.json").write_text("{}")
    report = inspect(str(folder))
    wanted = [
        f"{shards[0].name} cannot be opened",
        f"{shards[1].name} is truncated",
        f"tensor {integers} in {shards[2]} is stored as I32",
        f"the checkpoint lacks {', '.join(gone)}",
        "tensors that the model does not use: model.extra.weight",
        f"{misshapen} is [3, 3]",
        "tokenizer.json cannot be loaded",
    ]
    assert len(report.problems) == len(wanted)
    for words, problem in zip(wanted, report.problems, strict=True):
        assert words in problem
    assert run_alone(commands.inspect, "sax inspect", [str(folder)]) == 1
    assert "it would not load: 7 problems" in capsys.readouterr().out


def test_an_unknown_family_is_said_and_the_rest_still_shown(folder: Path) -> None:
    write_json(folder / "config.json", CONFIG | {"model_type": "mamba"})
    report = inspect(str(folder))
    assert len(report.problems) == 1
    assert "'mamba'" in report.problems[0]
    assert report.family is None
    assert report.parameters == NUMBERS
    assert report.tokenizer is not None
    assert "mamba (LlamaForCausalLM): not supported" in report.as_text()


def test_a_malicious_template_is_a_problem_not_a_crash(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for x in %}")
    report = inspect(str(folder))
    assert len(report.problems) == 1
    assert "chat_template.jinja cannot be loaded" in report.problems[0]


def test_a_chat_template_that_runs_away_is_a_problem(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny")
    (folder / "chat_template.jinja").write_text("{{ messages | length | round(-100000000) }}")
    report = inspect(str(folder))
    assert "the chat template" in report.problems[0]
    assert "was stopped" in report.problems[0]


def test_nothing_from_the_file_reaches_the_terminal_as_a_command(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("\x1b]0;title\x07{{ 1 }}\x1b[2J")
    text = inspect(str(folder)).as_text()
    assert "title" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_pickles_and_places_without_a_checkpoint_are_one_problem(tmp_path: Path) -> None:
    assert "does not exist" in inspect(str(tmp_path / "nowhere")).problems[0]
    folder = write_tiny(tmp_path / "x")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    report = inspect(str(folder))
    assert len(report.problems) == 1
    assert "pytorch_model.bin: such files are Python pickles" in report.problems[0]
    assert "it would not load: 1 problem" in report.as_text()


def test_half_precision_is_shown_as_it_is_stored(tmp_path: Path) -> None:
    report = inspect(str(write_tiny(tmp_path / "x", dtype="bfloat16")))
    assert [kind.kind for kind in report.stored] == ["BF16"]
    assert report.stored[0].bytes == NUMBERS * np.dtype(ml_dtypes.bfloat16).itemsize


def test_a_bucket_is_inspected_in_place(
    bucket_server: BucketServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(str(folder), str(bucket_server.root / "bucket" / "model"), to="orbax")
    assert run_alone(commands.inspect, "sax inspect", ["gs://bucket/model"]) == 0
    assert "gs://bucket/model" in capsys.readouterr().out


def test_the_command_hands_on_the_exit_status(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sax.cli", "inspect"]
    failed = subprocess.run(
        [*command, "--json", str(tmp_path / "nowhere")], capture_output=True, text=True
    )
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["loads"] is False


def test_the_demo_model_is_described(smollm2: Path) -> None:
    report = inspect(str(smollm2))
    assert report.problems == []
    assert report.parameters == 134_515_008
    assert [kind.kind for kind in report.stored] == ["Q4_1", "Q8_0", "F32"]
    assert report.memory["stored"] < report.memory["int8"]


@each_case("key", ["rope_scaling", "hidden_act", "architectures", "head_dim"])
@each_case("value", [-1, [1], "x", 10**30])
def test_nonsense_in_the_configuration_is_a_problem_not_a_crash(
    folder: Path, key: str, value: object
) -> None:
    write_json(folder / "config.json", CONFIG | {key: value})
    report = inspect(str(folder))
    assert report.loads is (key == "architectures")
    assert report.as_text()


def test_a_pax_checkpoint_of_unusual_sizes_says_them(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "llama")
    write_arrays(tmp_path, variables_of(case))
    report = inspect(str(tmp_path))
    assert report.format == "pax"
    assert report.model_type == "llama"
    text = " ".join(report.problems)
    assert (
        "no class of saxml.server.pax.lm.params has its sizes (NUM_LAYERS 2, MODEL_DIMS 16" in text
    )


def test_a_pax_checkpoint_of_a_classs_sizes_names_the_class() -> None:
    sizes = {"NUM_LAYERS": 32, "MODEL_DIMS": 4096, "HIDDEN_DIMS": 14336, "NUM_HEADS": 32}
    sizes |= {"DIMS_PER_HEAD": 128, "VOCAB_SIZE": 128256, "NUM_KV_HEADS": 8}
    found = fitting_classes({"model_type": "llama", "saxml_sizes": sizes})
    assert [path.rpartition(".")[2] for path in found] == [
        "LLaMA3_8BFP16x4",
        "LLaMA3_8BFP16Testx4",
        "LLaMA3_8BFP16x1",
    ]
