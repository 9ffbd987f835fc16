"""What a server saves is the checkpoint it loaded, byte by byte, and only where it may write; an
export computes what the model computes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.flax import load_file as load_arrays
from safetensors.numpy import load_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.saving import ExportedMethod, Saver
from sax.adapters import ADAPTER_PATH
from sax.errors import CheckpointError, InvalidRequest, SaxError, UnsupportedParameter
from sax.types import ModelSpec
from tests.model_server.checkpoints.pax_writer import write_arrays
from tests.model_server.checkpoints.tiny_folder import tokenizer_json, write_tiny
from tests.model_server.loading.loads import spec_of as publication
from tests.model_server.models.family_cases import checkpoint_of, golden_of
from tests.tools.golden.pax.cases import CASES
from tests.tools.golden.pax.model import variables_of

METHODS = (ExportedMethod("lm.score", "score"),)
CONTEXT = 32


def spec_of(
    checkpoint: str, path: str = "auto", overrides: Mapping[str, str] | None = None
) -> ModelSpec:
    return publication(checkpoint, path, **overrides or {})


def saver_below(folder: Path) -> Saver:
    return Saver((str(folder),))


def test_every_byte_of_the_weights_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    source, made = write_tiny(tmp_path / "source"), tmp_path / "made"
    saver_below(tmp_path).save(spec_of(str(source)), str(made))
    wanted, found = (load_file(folder / "model.safetensors") for folder in (source, made))
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert values.dtype == found[name].dtype
        assert values.tobytes() == found[name].tobytes()
    with closing(open_checkpoint(str(made))) as saved:
        assert saved.tokenizer().encode("he")
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_a_pax_checkpoint_becomes_one_that_says_everything(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "gptj")
    write_arrays(tmp_path / "pax", variables_of(case))
    (tmp_path / "pax" / "tokenizer.json").write_text(tokenizer_json())
    spec = spec_of(str(tmp_path / "pax"), case.path, case.overrides)
    saver_below(tmp_path).save(spec, str(tmp_path / "made"))
    with closing(open_checkpoint(str(tmp_path / "made"))) as saved:
        assert saved.config["rotary_dim"] == case.rotary
        wanted = variables_of(case)["transformer.x_layers_1.ff_layer.ffn_layer1.linear.w"].T
        np.testing.assert_array_equal(saved.read("transformer.h.1.mlp.fc_in.weight"), wanted)


def refused(saver: Saver, spec: ModelSpec, place: str) -> SaxError:
    with pytest.raises(SaxError) as caught:
        saver.save(spec, place)
    return caught.value


def test_nothing_is_written_without_roots(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source")
    error = refused(Saver(()), spec_of(str(source)), str(tmp_path / "made"))
    assert isinstance(error, InvalidRequest)
    assert "--checkpoint_roots" in error.text
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("place", ["{root}/../made", "{root}/link/made", "/etc/sax-made"])
def test_nothing_is_written_outside_the_roots(tmp_path: Path, place: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    source = write_tiny(root / "source")
    error = refused(saver_below(root), spec_of(str(source)), place.format(root=root))
    assert isinstance(error, CheckpointError)
    assert "is not below --checkpoint_roots" in error.text
    assert not (tmp_path / "made").exists()


def test_only_absolute_paths_of_this_machine_are_written(tmp_path: Path) -> None:
    for place in ("made", "", "gs://bucket/made", "file:///tmp/made"):
        error = refused(saver_below(tmp_path), spec_of("None"), place)
        assert "no absolute path" in error.text


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "source")
    error = refused(saver_below(tmp_path), spec_of(str(source)), str(source))
    assert "already exists" in error.text


def test_random_weights_and_other_kinds_of_models_are_refused_in_words(tmp_path: Path) -> None:
    saver, place = saver_below(tmp_path), str(tmp_path / "made")
    test = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
    random = refused(saver, spec_of("None", test), place)
    assert isinstance(random, UnsupportedParameter)
    assert "random weights" in random.text
    adapter = refused(saver, spec_of(str(tmp_path), ADAPTER_PATH), place)
    assert "only language models are written" in adapter.text


def test_a_checkpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    error = refused(saver_below(tmp_path), spec_of(str(tmp_path / "gone")), str(tmp_path / "made"))
    assert "was loaded from is read again" in error.text
    assert str(tmp_path / "gone") in error.text


def exported(folder: Path, case: str, overrides: Mapping[str, str]) -> Path:
    """The case's model as the server exports it."""
    source = checkpoint_of(case)
    overrides = {"DTYPE": '"float32"', "MAX_CONTEXT": str(CONTEXT), **overrides}
    spec = spec_of(str(source), overrides=overrides)
    Saver((str(folder), str(source.parent))).export(spec, str(folder / "made"), METHODS)
    return folder / "made"


@pytest.mark.parametrize("case", ["llama_tied", pytest.param("gptj", marks=pytest.mark.nightly)])
def test_its_logits_are_the_reference_implementations(tmp_path: Path, case: str) -> None:
    made, golden = exported(tmp_path, case, {}), dict(golden_of(case))
    told = json.loads((made / "export.json").read_text())
    signature = told["signatures"]["score"]
    program = jax.export.deserialize(bytearray((made / signature["file"]).read_bytes()))
    stored = load_arrays(made / "model.safetensors")
    weights = [stored[each["name"]] for each in told["weights"]]
    prompt = golden["prompt"]
    ids = np.zeros((1, CONTEXT), np.int32)
    ids[0, : len(prompt)] = prompt
    logits = program.call(weights, jnp.asarray(ids), jnp.asarray([len(prompt)], jnp.int32))
    wanted = golden["logits"]
    np.testing.assert_allclose(
        logits[0, : len(prompt)], wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4
    )
    assert told["model"] == "/sax/test/m"
    assert program.platforms == tuple(told["platforms"]) == ("cpu", "cuda", "tpu")


_READER = """
import json, sys
from pathlib import Path
import jax.export, jax.numpy as jnp, numpy as np
from safetensors.flax import load_file
made, prompt = Path(sys.argv[1]), json.loads(sys.argv[2])
told = json.loads((made / "export.json").read_text())
program = jax.export.deserialize(bytearray((made / "score.jax_export").read_bytes()))
stored = load_file(made / "model.safetensors")
ids = np.zeros((1, %d), np.int32)
ids[0, :len(prompt)] = prompt
weights = [stored[each["name"]] for each in told["weights"]]
logits = program.call(weights, jnp.asarray(ids), jnp.asarray([len(prompt)], jnp.int32))
assert not [name for name in sys.modules if name.startswith("model_server")]
np.save(made / "logits.npy", np.asarray(logits[0, :len(prompt)]))
"""


def test_a_fresh_process_runs_it_without_our_code(tmp_path: Path) -> None:
    golden = dict(golden_of("llama_tied"))
    made = exported(tmp_path, "llama_tied", {})
    command = [sys.executable, "-P", "-c", _READER % CONTEXT, str(made)]
    run = subprocess.run(
        [*command, json.dumps(golden["prompt"].tolist())],
        cwd=tmp_path,
        env={"JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    wanted = golden["logits"]
    np.testing.assert_allclose(
        np.load(made / "logits.npy"), wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4
    )


def test_quantised_and_sharded_models_are_exported_plain(tmp_path: Path) -> None:
    made = exported(tmp_path, "llama_tied", {"QUANTIZE": '"int8"', "ICI_MESH_SHAPE": "[1,1,2]"})
    told = json.loads((made / "export.json").read_text())
    assert {each["dtype"] for each in told["weights"]} == {"float32"}


def test_what_is_no_one_program_is_refused_by_name(tmp_path: Path) -> None:
    source = checkpoint_of("llama_tied")
    saver = Saver((str(tmp_path), str(source.parent)))
    for method in ("lm.generate", "lm.generate_stream", "lm.embed", "x"):
        exports = (ExportedMethod(method, "s"),)
        with pytest.raises(UnsupportedParameter, match=rf"{method} is not exported.*lm\.score"):
            saver.export(spec_of(str(source)), str(tmp_path / "made"), exports)
    assert not (tmp_path / "made").exists()
