"""`sax quantize` writes a folder that is read as it was measured, or says why it does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from model_server.checkpoints.huggingface.packed_writer import PackedForm, PackedTensors
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.packed import Packing
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.plan import commands
from model_server.plan.quantize.calibration import Calibration, embedded_rows
from model_server.plan.quantize.packable import packable
from model_server.plan.quantize.quantize import QuantizeOutcome, QuantizeRequest, quantize
from model_server.plan.quantize.rounding import Grid, Rounded
from model_server.plan.quantize.segments import SegmentedModel
from sax.command import run_alone
from sax.errors import CheckpointError, InvalidRequest, SaxError
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.models.family_cases import F32, checkpoint_of, config_of

TEXT = " ".join(f"the number {number} t" for number in range(60))
SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "head_dim": 4}
FORM = PackedForm(4, 8, "bfloat16")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("source") / "tiny", dtype="bfloat16", **SIZES)


@pytest.fixture(scope="module")
def written(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, QuantizeOutcome]:
    place = tmp_path_factory.mktemp("written") / "made"
    return place, quantize(request(source, place))


def request(source: Path, place: Path, **changed: Any) -> QuantizeRequest:
    given: dict[str, Any] = {
        "source": str(source),
        "destination": str(place),
        "text": TEXT,
        "form": FORM,
        "method": "gptq",
        "tokens": 512,
    }
    return QuantizeRequest(**given | changed)


@pytest.mark.extended
def test_the_folder_is_read_back_as_the_numbers_that_were_found(
    source: Path, written: tuple[Path, QuantizeOutcome]
) -> None:
    place, outcome = written
    stored = load_file(place / "model.safetensors")
    before, after = open_checkpoint(str(source)), open_checkpoint(str(place))
    assert sorted(after.names()) == sorted(before.names())
    assert len(outcome.findings.packed) == 14
    for name in outcome.findings.packed:
        assert after.packing(name) == Packing("int4", 8, offset=False)
        blocks = after.read_packed(name)
        scales = stored[f"{name}_scale"]
        assert scales.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(blocks.scales, scales.astype(np.float32))
        widened = Rounded(blocks.values, blocks.scales).widened()
        np.testing.assert_array_equal(after.read(name), widened)
        near = np.corrcoef(widened.flat, before.read(name).astype(np.float32).flat)[0, 1]
        assert near > 0.9, name
    for name in set(before.names()) - set(outcome.findings.packed):
        np.testing.assert_array_equal(after.read(name), before.read(name))


@pytest.mark.extended
def test_the_configuration_names_what_is_left(written: tuple[Path, QuantizeOutcome]) -> None:
    place, outcome = written
    said = json.loads((place / "config.json").read_text())["quantization_config"]
    assert (said["quant_method"], said["format"]) == ("compressed-tensors", "pack-quantized")
    weights = said["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["group_size"], weights["strategy"]) == (4, 8, "group")
    assert said["ignore"] == ["lm_head", "model.embed_tokens"]
    assert outcome.left == {"model.embed_tokens.weight": 1}


@pytest.mark.extended
def test_the_end_of_the_text_is_compared_and_not_used(
    written: tuple[Path, QuantizeOutcome],
) -> None:
    _, outcome = written
    tokens = len(TEXT)  # a byte each, more or less
    assert outcome.tokens == 512
    assert 0 < outcome.held_out < tokens - outcome.tokens
    source, at_load, made = outcome.quality.values()
    assert source.divergence == 0.0
    assert source.same == 1.0
    assert 0 < made.divergence < 2 * at_load.divergence
    text = outcome.as_text()
    assert "14 tensors packed" in text
    assert "model.embed_tokens.weight" in text
    assert "perplexity" in text


@each_case(
    "changed, kind, text",
    [
        ({"text": "too short"}, InvalidRequest, "at least 512 are needed"),
        ({"text": None}, InvalidRequest, "give --text FILE"),
        ({"method": "guess"}, InvalidRequest, "choose from nearest, importance, gptq"),
        ({"form": PackedForm(3, None, "bfloat16")}, InvalidRequest, "choose from 4, 8"),
        ({"form": PackedForm(4, 7, "bfloat16")}, InvalidRequest, "another --group than 7"),
        ({"form": PackedForm(4, -1, "bfloat16")}, InvalidRequest, "--group -1"),
        ({"form": PackedForm(4, 8, "int8")}, InvalidRequest, "--dtype int8: choose from"),
        ({"destination": "s3://bucket/made"}, CheckpointError, "to a local path"),
        ({"tokens": 0}, InvalidRequest, "--tokens 0"),
    ],
)
def test_what_does_not_fit_is_refused(
    source: Path, tmp_path: Path, changed: dict[str, Any], kind: type[SaxError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        quantize(request(source, tmp_path / "made", **changed))
    assert not list(tmp_path.iterdir())


def test_a_destination_that_exists_and_a_model_of_no_family_are_refused(
    source: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="already exists"):
        quantize(request(source, tmp_path))
    other = write_tiny(tmp_path / "other", model_type="mystery", architectures=["MysteryForAll"])
    with pytest.raises(SaxError, match="mystery"):
        quantize(request(other, tmp_path / "made"))


@pytest.mark.nightly
def test_experts_that_the_text_did_not_reach_are_rounded_by_what_all_saw(tmp_path: Path) -> None:
    config = config_of("qwen3_moe")
    with closing(open_checkpoint(str(checkpoint_of("qwen3_moe")))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, F32)
        assert isinstance(recipe, Recipe)
        form = PackedForm(8, None, "float32")
        model = SegmentedModel(recipe, checkpoint)
        tensors = PackedTensors(model.checkpoint, form, tmp_path)
        chosen = packable(recipe, model.checkpoint, form)
        calibration = Calibration(model, chosen, Grid(8, None, as_they_are), "gptq", tensors)
        draw = np.random.default_rng(0)
        tokens = draw.integers(0, config["vocab_size"], (2, 40)).astype(np.int32)
        calibration.run(embedded_rows(model, tokens, tmp_path / "rows"), lambda progress: None)
        experts = [n for n in checkpoint.names() if ".experts." in n]
        assert set(experts) <= set(calibration.findings.packed)
        assert calibration.findings.unreached
        assert not calibration.findings.unseen
        for name in experts:
            codes = np.asarray(tensors.read(f"{name}_packed"))
            assert codes.dtype == np.int32


def as_they_are(scales: np.ndarray) -> np.ndarray:
    return scales


def test_the_command_prints_what_it_found(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a text: nothing is read but the weights."""
    words: Sequence[str] = (str(source), str(tmp_path / "made"), "--method", "nearest", "--json")
    assert run_alone(commands.quantize, "sax quantize", [*words, "--bits", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["left"] == {"model.embed_tokens.weight": 1}
    assert found["quality"] == {}
    assert open_checkpoint(str(tmp_path / "made")).config["quantization_config"]
