"""Making a set: every program once, whatever happened to earlier runs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.step_program import COPY, WRITE, choice_name, masks_name
from model_server.loading.loaded import Loaded
from model_server.loading.loader import make_loader
from model_server.loading.passes.beside import beside_of
from model_server.models.weights.sharding import Layout, own_device
from model_server.plan.precompile.making import Made, Maker, manifest_of, program_count
from model_server.plan.precompile.subject import Subject, subject_of
from model_server.plan.slices import CHIPS
from model_server.programs.finding import find_passes
from model_server.programs.manifest import Manifest
from model_server.programs.place import sets_at
from model_server.programs.ready_programs import ReadyPrograms
from model_server.programs.surroundings import keys_of
from sax.errors import CheckpointError, LoadFailed
from sax.types import ModelSpec
from tests.demo_model import ROOT
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.plan.measures import deployed
from tests.model_server.programs.made_here import LIMITS, answer, lowered
from tests.model_server.tpu_compiler import mesh_of, needs_compiler

BUCKETS = tuple(Bucket(decodes, 0) for decodes in (2, 4, 8))
SMALL = {
    "NUM_LAYERS": "1",
    "MODEL_DIMS": "16",
    "HIDDEN_DIMS": "32",
    "NUM_HEADS": "4",
    "DIMS_PER_HEAD": "8",
    "VOCAB_SIZE": "300",
}


@dataclass
class Products:
    """Stands for the steps of a model: a product per bucket, and buckets that do not compile."""

    broken: set[int] = field(default_factory=set)
    leaves: tuple[Any, ...] = field(
        default_factory=lambda: (
            jax.ShapeDtypeStruct((4,), jnp.int32, sharding=own_device().sharding((4,), (None,))),
        )
    )
    pages: tuple[Any, ...] = ()
    window_layers: tuple[bool, ...] = ()
    state: Any = field(default_factory=lambda: SimpleNamespace(last_tokens=None))
    everywhere: Any = None
    encoder: Any = None
    overwrite: Any = None

    def deployment(self) -> Any:
        return SimpleNamespace(
            limits=LIMITS, layout=own_device(), buckets=BUCKETS, program=self, draft=None
        )

    def programs(self, buckets: Sequence[Bucket]) -> dict[str, Callable[[], jax.stages.Lowered]]:
        return {
            **{str(bucket): partial(self.lower, bucket) for bucket in buckets},
            WRITE: lambda: lowered(64),
            COPY: lambda: lowered(128),
        }

    def lower(self, bucket: Bucket) -> jax.stages.Lowered:
        if bucket.decodes in self.broken:
            raise ValueError("out of registers\nand more")
        return lowered(bucket.decodes)


def subject(*broken: int) -> Subject:
    return Subject(
        title="products",
        overrides={},
        topology="cpu",
        has_checkpoint=False,
        config=ModelServerConfig(),
        deployment=Products(set(broken)).deployment(),
    )


def run(place: Path, of: Subject, *, keep_going: bool = False) -> tuple[Maker, list[Made]]:
    told: list[Made] = []
    maker = Maker(of, str(place), told.append, keep_going=keep_going)
    maker.make()
    return maker, told


def test_every_program_is_written_and_runs(tmp_path: Path) -> None:
    _, told = run(tmp_path, subject())
    assert program_count(subject()) == len(told) == 5
    ((folder, manifest),) = sets_at(str(tmp_path))
    names = [entry.name for entry in manifest.programs]
    assert names == [*(str(bucket) for bucket in BUCKETS), WRITE, COPY]
    of_set = ReadyPrograms(folder, manifest, manifest.sax)
    for bucket in BUCKETS:
        found = of_set.find(lowered(bucket.decodes))
        assert found is not None
        assert answer(found[0]) == [bucket.decodes * n for n in range(4)]


def test_a_second_run_compiles_nothing(tmp_path: Path) -> None:
    run(tmp_path, subject())
    ((_, first),) = sets_at(str(tmp_path))
    _, told = run(tmp_path, subject())
    assert all(made.was_there for made in told)
    ((_, second),) = sets_at(str(tmp_path))
    assert second.programs == first.programs


def test_a_damaged_program_is_compiled_again(tmp_path: Path) -> None:
    run(tmp_path, subject())
    ((folder, manifest),) = sets_at(str(tmp_path))
    damaged = manifest.programs[1]
    (tmp_path / folder.name / damaged.file).write_bytes(b"x" * damaged.size)
    _, told = run(tmp_path, subject())
    assert [made.name for made in told if not made.was_there] == [damaged.name]
    ((folder, manifest),) = sets_at(str(tmp_path))
    assert all(folder.read(entry) for entry in manifest.programs)


def test_a_run_that_was_cut_off_is_no_set_and_is_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"8 decodes .* blocks: ValueError: out of registers$"):
        run(tmp_path, subject(8))
    assert list(sets_at(str(tmp_path))) == []
    _, told = run(tmp_path, subject())
    there = {made.name: made.was_there for made in told}
    assert {name: there[name] for name in map(str, BUCKETS)} == {
        str(bucket): bucket.decodes != 8 for bucket in BUCKETS
    }
    assert len(list(sets_at(str(tmp_path)))) == 1


def test_with_keep_going_the_rest_is_made(tmp_path: Path) -> None:
    maker, _ = run(tmp_path, subject(4), keep_going=True)
    assert [made.name for made in maker.failures] == [str(BUCKETS[1])]
    ((_, manifest),) = sets_at(str(tmp_path))
    assert [entry.name for entry in manifest.programs] == [
        str(BUCKETS[0]),
        str(BUCKETS[2]),
        WRITE,
        COPY,
    ]


def test_a_place_that_cannot_be_written_is_told_before_anything_is_compiled(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        run(tmp_path / "file" / "sets", subject(2, 4, 8))


@pytest.mark.nightly
@needs_compiler
def test_programs_for_a_slice_that_is_elsewhere_are_written(tmp_path: Path) -> None:
    # To run them takes the slice; that they are whole and what they were made for can be seen.
    config = ModelServerConfig(slots=2, page_size=16, kv_cache_bytes=200_000, prefill=True)
    overrides = {**SMALL, "ICI_MESH_SHAPE": "[1, 1, 4]"}
    made = subject_of("LmCloudSpmd2BTest", overrides, "v5e:2x2", config)
    made.deployment.__dict__["buckets"] = made.deployment.buckets[:1]  # one is enough
    _, told = run(tmp_path, made)
    ((folder, manifest),) = sets_at(str(tmp_path))
    names = [entry.name for entry in manifest.programs]
    assert names == [
        "2 decodes + 0 prompt blocks",
        choice_name(2),
        masks_name(2),
        WRITE,
        COPY,
        *(f"read {2**n} pages" for n in (4, 3, 2, 1, 0)),
    ]
    assert all(len(folder.read(entry)) > 10_000 for entry in manifest.programs)
    keys = manifest.keys
    assert (keys.platform, keys.chip, keys.mesh) == ("tpu", "TPU v5 lite", "1x1x4")
    assert (keys.hosts, keys.devices_per_host, keys.machine) == (1, 4, "")
    assert keys.devices[1] == "1 at 1,0,0 core 0"
    assert keys.libtpu
    assert folder.name.startswith("v5e-2x2-")


@needs_compiler
def test_a_set_leaves_room_for_a_device_that_tells_of_less_memory() -> None:
    config, overrides = ModelServerConfig(slots=64), {"ICI_MESH_SHAPE": "[1, 1, 4]"}
    made = subject_of("LmCloudSpmd2BTest", overrides, "v5e:2x2", config)
    told = deployed("LmCloudSpmd2BTest", "v5e:2x2", overrides, config)
    pages = made.deployment.limits.pages
    spare = told.memory.kv // (told.memory.pages + 1) * (told.limits.pages - pages)
    assert 0 <= spare - CHIPS["v5e"].usable // 64 < 2**23
    assert jax.tree.leaves(made.deployment.program.pages)[0].shape[0] == pages + 1
    given = replace(config, kv_cache_bytes=2**26)
    exact = deployed("LmCloudSpmd2BTest", "v5e:2x2", overrides, given)
    same = subject_of("LmCloudSpmd2BTest", overrides, "v5e:2x2", given)
    assert same.deployment.limits == exact.limits


PASSES = {
    "TASKS": '["generate", "embed", "gradient"]',
    "PASS_CONTEXT": "8",
    "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES": '["final_norm.scale"]',  # one text at a time
}


def test_passes_are_in_the_set_and_are_not_compiled_again_by_a_server(tmp_path: Path) -> None:
    config = ModelServerConfig(slots=2, page_size=16, programs=str(tmp_path))
    made = subject_of("LmCloudSpmd2BTest", {**SMALL, **PASSES}, "cpu", config)
    made.deployment.__dict__["buckets"] = made.deployment.buckets[:1]  # one is enough
    run(tmp_path, made)
    ((_, manifest),) = sets_at(str(tmp_path))
    embeddings = tuple(f"embedding of {rows} x 8 tokens" for rows in (1, 4, 16))
    assert manifest.passes == (*embeddings, "gradients of 1 x 8 tokens")
    assert {*manifest.passes} <= {entry.name for entry in manifest.programs}
    spec = ModelSpec(
        model_id="/sax/test/passes", model_path=made.title, checkpoint="None", replicas=1
    )
    deployment = made.deployment
    found = find_passes(spec, config, deployment.blueprint, deployment.layout)
    assert found is not None
    beside = beside_of(deployment, None, frozenset({"generate", "embed", "gradient"}))
    assert beside is not None
    again = beside.compile(found.over(Refusing()))
    assert again.beside == deployment.beside > 0, "a program that was read tells its memory too"


class Refusing:
    """Programs that nobody may need."""

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        raise AssertionError(f"{name} would be compiled")

    def pass_on(self, name: str, body: bytes) -> None:
        """Nobody waits."""


@needs_compiler
def test_programs_for_a_slice_of_several_hosts_know_them() -> None:
    keys = keys_of(Layout(mesh_of("v5e:4x8")))
    assert (keys.hosts, keys.devices_per_host, keys.mesh) == (8, 4, "1x1x32")
    assert len(set(keys.devices)) == 32


_KERNEL = """
import jax
from jax.experimental import pallas as pl

def double(x, out):
    out[...] = x[...] * 2

def step(x):
    return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""
_LOWER = """
import sys
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from model_server.programs.ready_programs import digest_of_text
from tests.model_server.tpu_compiler import one_device

mesh = one_device("v5e")
x = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=NamedSharding(mesh, P()))

def digest(place):
    scope = {}
    exec(compile(sys.argv[1], place, "exec"), scope)
    step = jax.shard_map(scope["step"], mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    return digest_of_text(jax.jit(step).lower(x))

print(digest("/opt/sax/kernel.py") == digest("/home/somebody/kernel.py"))
jax.config.update("jax_traceback_in_locations_limit", 10)  # as jax has it
print(digest("/opt/sax/kernel.py") == digest("/home/somebody/kernel.py"))
"""


@needs_compiler
def test_the_text_of_a_kernel_is_the_same_wherever_sax_is_installed() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _LOWER, _KERNEL],
        env={**os.environ, **ModelServerConfig().environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.stdout.split() == ["True", "False"], ran.stderr


def drafted_by(draft: Path | str) -> dict[str, str]:
    return {
        "DTYPE": '"float32"',
        "SPECULATION": '"draft"',
        "DRAFT_MODEL": f'"{draft}"',
        "MAX_GUESSES": "2",
    }


@pytest.mark.parametrize(
    "prefill",
    [pytest.param(False, id="alone", marks=pytest.mark.nightly), pytest.param(True, id="others")],
)
def test_programs_of_a_draft_model_are_in_the_set_and_a_server_compiles_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prefill: bool
) -> None:
    caplog.set_level(logging.INFO)
    model, place = write_tiny(tmp_path / "model"), tmp_path / "sets"
    draft = write_tiny(tmp_path / "draft", num_hidden_layers=1)
    config = ModelServerConfig(
        slots=2, page_size=16, max_context=64, programs=str(place), prefill=prefill
    )
    run(place, subject_of(str(model), drafted_by(draft), "cpu", config))
    ((_, manifest),) = sets_at(str(place))
    assert "draft model: guesses of 2 sequences" in {entry.name for entry in manifest.programs}
    spec = ModelSpec(
        model_id="/sax/test/drafted",
        model_path="auto",
        checkpoint=str(model),
        replicas=1,
        overrides=drafted_by(draft),
    )
    loaded = make_loader(config)(spec, lambda _: None)
    assert isinstance(loaded, Loaded)
    with closing(loaded.runner):
        count = len(manifest.programs)
        assert f"all {count} programs of its steps were read" in caplog.text


def test_sets_for_other_draft_models_have_other_names(tmp_path: Path) -> None:
    model, small = write_tiny(tmp_path / "model"), write_tiny(tmp_path / "1", num_hidden_layers=1)
    config = ModelServerConfig(slots=2, page_size=16, max_context=64, kv_cache_bytes=200_000)

    def manifest(**overrides: str) -> Manifest:
        return manifest_of(subject_of(str(model), overrides, "cpu", config))

    alone = {"SPECULATION": '"ngram"', "MAX_GUESSES": "2", "DTYPE": '"float32"'}
    made = [manifest(**each) for each in (alone, drafted_by(model), drafted_by(small))]
    assert made[0].draft == ""
    assert len({each.draft for each in made}) == len({each.name for each in made}) == 3
