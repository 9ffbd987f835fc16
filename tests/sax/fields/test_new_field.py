"""A new sampling field of one number takes four files: tried on a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

from sax.proto import tokens_pb2

ROOT = Path(__file__).parents[3]

# File -> (a line of it, what is put before that line). The field keeps tokens whose probability is
# at least top_a times the square of the likeliest one's.
EDITS: dict[str, list[tuple[str, str]]] = {
    "sax/fields/sampling.py": [
        (
            "    logit_bias: Mapping[int, float] = _field(\n",
            "    top_a: float = _field(\n"
            "        0.0,\n"
            "        SamplingRow(\n"
            '            help="Sample from tokens at least this often as likely as the square.",\n'
            "            kind=Kind.NUMBER,\n"
            "            least=0,\n"
            "            most=1,\n"
            '            column="f",\n'
            "        ),\n"
            "    )\n",
        )
    ],
    "sax/proto/tokens.proto": [
        ("  map<int32, double> logit_bias = 116;\n", "  optional double top_a = 130;\n")
    ],
    "model_server/engine/types.py": [
        ("    logit_bias: tuple[tuple[int, float], ...] = ()\n", "    top_a: float = 0.0\n")
    ],
    "model_server/engine/sampling.py": [
        ("    seed: jax.Array  # u32[R, 2], high word first\n", "    top_a: jax.Array\n"),
        (
            "        (rows.top_k > 0, _keep_top_k, rows.top_k),\n",
            "        (rows.top_a > 0, _keep_top_a, rows.top_a),\n",
        ),
        (
            "def _keep_min_p(",
            "def _keep_top_a(\n"
            "    weights: jax.Array, top_a: jax.Array, others: jax.Array\n"
            ") -> jax.Array:\n"
            "    likeliest = weights.max(-1) / (weights.sum(-1) + others)\n"
            "    least = top_a * likeliest * weights.max(-1)\n"
            "    return jnp.where(weights >= least[:, None], weights, 0.0)\n\n\n",
        ),
    ],
}

TRIED = """
import inspect, json
import jax
import jax.numpy as jnp
import numpy as np
from http_gateway.openai.completions import CompletionRequest
from model_server.engine.buckets import Bucket
from model_server.engine.sampling import sample
from model_server.engine.slot_state import unpack
from model_server.engine.column_layout import ColumnLayout
from model_server.engine.step_arrays import StepArrays
from model_server.engine.step_functions import _row_sampling
from model_server.kernels.cpu.native import available
from model_server.engine.types import Row, SlotSampling, Step
from model_server.serving.engine_request import make_engine_request
from model_server.serving.request_checks import check_sampling
from sax.cli.commands.requests import generate
from sax.cli.fields_page import page
from sax.errors import InvalidRequest
from sax.types import GenerateRequest, ModelSpec, SamplingParams
from sax.wire.extra_inputs import encode_extra_inputs, sampling_from_extra_inputs
from sax.wire.tokens import decode_generate, encode_generate
from tests.model_server.fake_model import LIMITS, FakeModels


def body(**fields):
    raw = {"model": "m", "prompt": "x", "temperature": 2, "seed": 3, **fields}
    made = CompletionRequest.model_validate_json(json.dumps(raw))
    made.check()
    return made.sampling()


def refused(value):
    try:
        body(top_a=value)
    except InvalidRequest as error:
        return error.text
    raise AssertionError("it was not refused")


assert refused(1.5) == "top_a is 1.5: give a number from 0 to 1"
request = GenerateRequest(model_id="/sax/test/m", prompt="x", sampling=body(top_a=1))
request = decode_generate(type(message := encode_generate(1, request)).FromString(
    message.SerializeToString()))
assert request.sampling.top_a == 1
extra = encode_extra_inputs({"top_a": 0.5})
assert sampling_from_extra_inputs(extra, SamplingParams()).top_a == 0.5
assert "top_a" in inspect.signature(generate).parameters
assert "| `top_a` |" in page()

spec = ModelSpec(model_id="/sax/test/fake", model_path="fake", checkpoint="None", replicas=1)
loaded = FakeModels()(spec, lambda progress: None)
check_sampling(request.sampling, 256)


def drawn(sampling, seed, native):
    from dataclasses import replace
    asked = replace(request, sampling=replace(sampling, seed=seed))
    device = make_engine_request([1], asked, loaded).sampling
    layout = ColumnLayout(Bucket(1, 0), LIMITS)
    step = Step(1, (Row(1, 0, 1, (), True),), samplings=(SlotSampling(0, device),))
    vector, _ = StepArrays(LIMITS).pack(step, layout)
    rows = _row_sampling(unpack(layout.parts, jnp.asarray(vector)))
    return int(chosen(logits, rows, native=native).tokens[0])


chosen = jax.jit(sample, static_argnames="native")
logits = jnp.asarray(np.r_[4.0, np.zeros(9)][None], jnp.float32)
for native in {False, available()}:  # which servers on CPUs draw by
    assert {drawn(request.sampling, seed, native) for seed in range(6)} == {0}
    assert {drawn(body(), seed, native) for seed in range(6)} != {0}
print("it works")
"""


def test_a_new_field_takes_four_files_and_works_from_the_body_to_the_device(
    tmp_path: Path,
) -> None:
    for package in ("sax", "model_server", "http_gateway"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    for name, edits in EDITS.items():
        _edit(tmp_path / name, edits)
    _generate(tmp_path / "sax/proto/tokens_pb2.py")
    assert len(EDITS) <= 4
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", TRIED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "it works\n", done.stderr


def _edit(file: Path, edits: list[tuple[str, str]]) -> None:
    text = file.read_text()
    for before, more in edits:
        assert text.count(before) == 1, before
        text = text.replace(before, more + before)
    file.write_text(text)


def _generate(file: Path) -> None:
    """Do what `make proto` does for the new line, without its compiler."""
    made = descriptor_pb2.FileDescriptorProto()
    tokens_pb2.DESCRIPTOR.CopyToProto(made)
    sampling = next(message for message in made.message_type if message.name == "Sampling")
    sampling.oneof_decl.add(name="_top_a")
    sampling.field.add(
        name="top_a",
        number=130,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
        json_name="topA",
        oneof_index=len(sampling.oneof_decl) - 1,
        proto3_optional=True,
    )
    file.write_text(
        "from google.protobuf import descriptor_pool\n"
        "from google.protobuf.internal import builder\n"
        f"DESCRIPTOR = descriptor_pool.Default().AddSerializedFile({made.SerializeToString()!r})\n"
        "builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())\n"
        "builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, 'sax.proto.tokens_pb2', globals())\n"
    )
