"""An exported program gives the model's logits in a process that has jax and nothing of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.flax import load_file

from model_server.loading.saving.exporting import ExportedMethod
from model_server.loading.saving.saver import Saver
from sax.errors import UnsupportedParameter
from tests.model_server.loading.saving.test_saver import spec_of
from tests.model_server.models.family_cases import checkpoint_of, golden_of

METHODS = (ExportedMethod("lm.score", "score"),)
CONTEXT = 32


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
    stored = load_file(made / "model.safetensors")
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
