"""A process draws what its devices hold, alone, and the numbers are those of the whole."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.loading.random_weights import Draw, DrawnRows, drawn_rows, random_weights, rows_of
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import layout_of
from model_server.models.weights.source import Joined, RepeatedGroups, Tensor, cut
from tests.demo_model import ROOT
from tests.model_server.draws_on_meshes import KINDS, PAGES
from tests.processes import on_devices

_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
SMALL = {
    "NUM_LAYERS": "2",
    "MODEL_DIMS": "32",
    "HIDDEN_DIMS": "48",
    "NUM_HEADS": "8",
    "DIMS_PER_HEAD": "4",
    "VOCAB_SIZE": "50",
    "DTYPE": '"float32"',
}
ATTENTION = "layers.1.attention.qkv.linears"


@pytest.mark.parametrize(
    ("dtype", "whole", "begin", "shape"),
    [
        ("int8", (6, 300), (0, 100), (6, 100)),  # tiles are cut
        ("float32", (6, 512), (3, 256), (3, 256)),
        ("int8", (4, 6, 40), (2, 3, 20), (2, 3, 20)),
        ("float32", (12,), (4,), (4,)),
    ],
)
def test_a_region_is_drawn_as_in_the_whole(
    dtype: str, whole: tuple[int, ...], begin: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    def drawn(begin: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        draw = Draw(whole=whole, shape=shape, dtype=jnp.dtype(dtype), spread=30.0)
        rows = drawn_rows([DrawnRows(3, whole[0], whole[0], 1)], 7, begin[0], shape[0])
        region = jax.jit(draw.region)
        return np.asarray(region(rows, np.asarray(begin, np.uint32)))

    everything = drawn((0,) * len(whole), whole)
    part = tuple(slice(at, at + size) for at, size in zip(begin, shape, strict=True))
    np.testing.assert_array_equal(drawn(begin, shape), everything[part])
    assert 20 < everything.std() < 40
    assert len(np.unique(everything)) > 7


def test_rows_of_a_region_are_numbered_as_in_the_whole() -> None:
    parts = [DrawnRows(1, 4, 4, 1), DrawnRows(2, 4, 2, 3)]
    everything = drawn_rows(parts, 7, 0, 16)
    np.testing.assert_array_equal(drawn_rows(parts, 7, 3, 9), everything[3:12])
    assert everything[:, 2].tolist() == [0, 1, 2, 3, *[0, 1] * 3, *[2, 3] * 3]
    assert len(np.unique(everything[:, :2], axis=0)) == 2


# --- two processes with two devices each --------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes left what they hold and every program that they compiled, and a third
    one all leaves.
    """
    folder = tmp_path_factory.mktemp("draws")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    # As servers compile: other code may round in other ways for other shapes.
    environment = on_devices(2) | {
        "XLA_FLAGS": f"--xla_dump_to={folder} --xla_dump_hlo_as_text",
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # what is read from there is not dumped
    }
    alone = on_devices(1) | {"XLA_FLAGS": ""}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.model_server.draws_on_meshes", *arguments],
            env=flags,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for flags, *arguments in (
            (environment, str(folder / "0.npz"), "0", coordinator),
            (environment, str(folder / "1.npz"), "1", coordinator),
            (alone, str(folder / "alone.npz")),
        )
    ]
    errors = [process.communicate(timeout=280)[1] for process in started]
    assert all(process.returncode == 0 for process in started), errors
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_every_device_holds_its_part_of_what_one_device_would_hold(place: Path, kind: str) -> None:
    wanted = dict(_alone(place, kind))
    held = [dict(np.load(place / f"{number}.npz")) for number in range(2)]
    seen = set()
    for key, numbers in (item for each in held for item in each.items()):
        name, _, begin = key.partition(":")
        if name in wanted:
            starts = [int(number) for number in begin.split(",")]
            region = tuple(slice(a, a + n) for a, n in zip(starts, numbers.shape, strict=True))
            np.testing.assert_array_equal(numbers, wanted[name][region], err_msg=key)
            seen.add(name)
    assert seen == set(wanted)
    assert not wanted[f"{kind} {PAGES}"].any()
    names = [name for name in wanted if name.endswith(("down.kernel ", "down.kernel values"))]
    parts = [np.size(found) for each in held for k, found in each.items() if k.startswith(names[0])]
    assert parts == [np.size(wanted[names[0]]) // 4] * (2 if kind == KINDS[0] else 4)


def _alone(place: Path, kind: str) -> Iterator[tuple[str, np.ndarray]]:
    """The same on one device, under the names that a mesh gives: q, k and v lie apart there."""
    for name, array in np.load(place / "alone.npz").items():
        if not name.startswith(f"{kind} "):
            continue
        if "qkv.linears.0.kernel" not in name:
            yield name, array
            continue
        q, k, v = np.split(array, [160, 240])
        for number, part in enumerate((q, k, v)):
            yield name.replace("linears.0", f"linears.{number}"), part


@pytest.mark.nightly
def test_no_program_of_a_load_runs_on_another_hosts_devices(place: Path) -> None:
    programs = [path.read_text() for path in place.glob("*after_optimizations.txt")]
    assert any("num_partitions=2" in text for text in programs)
    assert not any("num_partitions=4" in text for text in programs)
    assert not any(_COLLECTIVE.search(text) for text in programs)


def drawn(path: str, shards: int, overrides: dict[str, str]) -> dict[str, np.ndarray]:
    module = make_recipe(path, None, SMALL | overrides).blueprint(layout_of((1, 1, shards)))
    paths = [weight.path for weight in module.declarations for _ in weight.leaves]
    leaves = random_weights(module.declarations, 5, lambda _: None)
    return {path: np.asarray(leaf) for path, leaf in zip(paths, leaves, strict=True)}


@pytest.mark.parametrize("path", ["lm_cloud.LmCloudSpmd2BTest", "gptj.GPTJ"])
def test_fused_projections_hold_what_separate_ones_hold(path: str) -> None:
    overrides = {"ROTARY_DIM": "4"} if path.startswith("gptj") else {}
    fused = drawn(f"pax.lm.params.{path}", 1, overrides)
    apart = drawn(f"pax.lm.params.{path}", 4, overrides)
    together = np.concatenate([apart[f"{ATTENTION}.{i}.kernel"] for i in range(3)])
    np.testing.assert_array_equal(fused[f"{ATTENTION}.0.kernel"], together)
    np.testing.assert_array_equal(fused["embedding.table"], apart["embedding.table"])


def test_copied_kv_heads_are_copies() -> None:
    grouped = {"NUM_KV_HEADS": "2"}
    fused = drawn("pax.lm.params.lm_cloud.LLaMA7B", 1, grouped)[f"{ATTENTION}.0.kernel"]
    apart = drawn("pax.lm.params.lm_cloud.LLaMA7B", 4, grouped)
    heads = fused[8 * 4 :].reshape(2, 2, 4, 32)  # keys and values, KV head, row
    for part in range(2):
        copies = apart[f"{ATTENTION}.{1 + part}.kernel"].reshape(4, 4, 32)
        np.testing.assert_array_equal(copies, np.repeat(heads[part], 2, axis=0))


def test_parts_of_one_weight_and_layers_differ() -> None:
    made = drawn("pax.lm.params.lm_cloud.LmCloudSpmd2BTest", 4, {})
    q, k, v = (made[f"{ATTENTION}.{i}.kernel"] for i in range(3))
    other = made[f"{ATTENTION.replace('1', '0')}.0.kernel"]
    for one, two in ((q, k), (k, v), (q, other)):
        assert not np.array_equal(one, two)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_the_parts_make_up_all_rows(sizes: list[int]) -> None:
    parts = tuple(cut(Tensor("x"), 0, size, of=9) for size in sizes)
    rows = rows_of(Joined(parts, sizes=tuple(sizes)), sum(sizes), "path")
    assert [part.count * part.times for part in rows] == sizes


def test_copies_are_drawn_once() -> None:
    (rows,) = rows_of(RepeatedGroups(Tensor("x"), 4, 2), 16, "path")
    assert (rows.count, rows.group, rows.times) == (8, 4, 2)
    assert rows.key == rows_of(Tensor("x"), 8, "path")[0].key


def test_a_weight_without_a_source_is_drawn_by_its_path() -> None:
    one, two = (rows_of(Joined(()), 4, path) for path in ("a.kernel", "b.kernel"))
    assert one != two
