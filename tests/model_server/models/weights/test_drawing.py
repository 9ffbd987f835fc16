"""Random weights are the same however they are cut for a mesh."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.loading.random_weights import random_weights
from model_server.models.registry import make_recipe
from model_server.models.weights.drawing import rows_of
from model_server.models.weights.sharding import layout_of
from model_server.models.weights.source import Joined, RepeatedGroups, Tensor, cut

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
