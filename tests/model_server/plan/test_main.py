"""The command line of plans: exit statuses, one message for each mistake, and a real plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_server.config import ModelServerConfig
from model_server.plan.__main__ import main
from model_server.plan.compiled import measure
from tests.each_case import each_case
from tests.model_server.plan.measures import deployed
from tests.model_server.tpu_compiler import needs_compiler
from tests.tools.golden.media.gemma3 import gemma3_config

pytestmark = needs_compiler
_SMALL = (
    "lm_cloud.LmCloudSpmd2BTest",
    "--set=NUM_LAYERS=1",
    "--set=MODEL_DIMS=256",
    "--set=HIDDEN_DIMS=512",
    "--set=NUM_HEADS=4",
    "--set=DIMS_PER_HEAD=128",
    "--set=ICI_MESH_SHAPE=null",
    "--slots=2",
    "--kv_cache_bytes=10000000",
)


@each_case(
    "arguments, message",
    [
        (["nonsense", "--topology=v5e:4x8"], "'nonsense' is not a model path"),
        (["Llama-3-8B", "--topology=v5x:4x8"], "no TPU is called 'v5x'; nearest:"),
        (["Llama-3-8B", "--topology=v5e:3x3"], "there is no slice v5e:3x3"),
        (["Llama-3-8B", "--topology=auto", "--chip=h100"], "no TPU is called 'h100'"),
        (["Llama-3-8B", "--topology=v5e:2x2", "--chip=v6e"], "--chip goes with --topology auto"),
        (["LmCloudSpmd175B32Test", "--topology=v5e:4x4"], "needs 32 devices and v5e:4x4 has 16"),
        (["Llama-3-8B", "--topology=v5e:2x2", "--set=A"], "write KEY=JSON"),
        (["Llama-3-8B", "--topology=v5e:2x2", "--set=QUANTISE=1"], "did you mean QUANTIZE"),
        (
            ["Llama-3-8B", "--topology=v5e:2x2", '--set=QUANTIZE="stored"'],
            "keeps a checkpoint's own",
        ),
        (["Llama-3-8B", "--topology=v5e:2x2", "--slots=0"], "--slots is 0"),
        (["Llama-3-8B", "--topology=v5e:2x2", "--context=0"], "--context is 0"),
        (["Llama-3-8B", "--topology=v5e:2x2", "--kv_cache_bytes=9"], "raise --kv_cache_bytes"),
        (["Llama-3-8B", "--topology=v5e:2x2", "--page_size=12"], "the page size is 12; on a TPU"),
        (
            ["Llama-3-8B", "--topology=v5e:2x4", "--slots=1024", "--page_size=8"],
            "use larger pages",
        ),
        (["Llama-3-8B", "--topology=v5e:2x2", "--plot=a.png"], "the picture is an SVG"),
        (["Llama-3-8B", "--topology=v5e:2x2", "--values=/nowhere/a"], "cannot be written"),
    ],
)
def test_a_wrong_question_has_one_message_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert err.count("\n") == 1


def test_with_json_a_wrong_question_is_answered_by_an_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["Llama-3-8B", "--topology=v5e:2x2", "--json", "--emit=kubernetes"]) == 2
    out, err = capsys.readouterr()
    assert "leave one out" in json.loads(out)["error"]["text"]
    assert err == ""


def test_a_model_that_does_not_fit_says_what_to_change_and_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["Llama-3-8B", "--topology=v5e:1x1", "--json"]) == 1
    plan = json.loads(capsys.readouterr().out)
    assert not plan["fits"]
    assert "does not fit v5e:1x1: weights 14.96 GiB" in plan["problem"]
    assert plan["advice"][0].startswith('--set QUANTIZE="int8": ')
    assert plan["advice"][-1].startswith("--topology v5e:2x2: ")


def test_one_bucket_is_compiled_for_real_and_its_numbers_are_read() -> None:
    overrides = {"NUM_LAYERS": "1", "MODEL_DIMS": "256", "HIDDEN_DIMS": "512", "NUM_HEADS": "4"}
    deployment = deployed(
        "lm_cloud.LmCloudSpmd2BTest",
        "v5e:2x2",
        {**overrides, "ICI_MESH_SHAPE": "null"},
        ModelServerConfig(slots=2, kv_cache_bytes=10**7),
    )
    found = measure(deployment.program, deployment.buckets[0])
    assert found.arguments > deployment.memory.kv
    assert found.traffic.sent["all-reduce"] > 0
    assert found.traffic.moved.read > 32000 * 256 * 2 / 4  # a chip's share of the head
    assert found.flops > 0


@pytest.mark.nightly
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_a_model_whose_images_see_both_ways_fits_and_its_steps_are_compiled(
    chip: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = gemma3_config({"image_size": 28})
    made["text_config"] |= {"num_hidden_layers": 2, "sliding_window_pattern": 2}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(made))
    sizes = ["--slots=2", "--kv_cache_bytes=10000000", "--set=ICI_MESH_SHAPE=[1,1,1]", "--full"]
    assert main([str(config), f"--topology={chip}:1x1", *sizes, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [bucket["blocks"] for bucket in plan["buckets"]][:2] == [0, 1]
    assert any("images of up to 4 tokens each" in note for note in plan["notes"])


@pytest.mark.nightly
def test_a_plan_fits_writes_its_files_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, values = tmp_path / "roof.svg", tmp_path / "values.yaml"
    files = [f"--plot={plot}", f"--values={values}"]
    assert main([*_SMALL, "--topology=auto", "--json", *files]) == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)
    assert plan["slice"]["topology"] == "v5e:1x1"
    assert [bucket["blocks"] for bucket in plan["buckets"]] == [0, 1, 4, 8]
    assert all(bucket["efficiency"] > 0.9 for bucket in plan["buckets"])
    assert "compiled 2 decodes + 0 prompt blocks" in err
    assert plot.read_text().startswith("<svg")
    assert "google.com/tpu: 1" in values.read_text()
