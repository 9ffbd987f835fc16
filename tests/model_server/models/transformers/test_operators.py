"""Operations of torch in jax: those whose arguments mean something else than jax's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.models.transformers.operators import OPERATORS

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 7
ROWS = np.array([[0.5, -1.0, 2.0, 0.0], [3.0, 3.0, 1.0, -2.0]], np.float32)
PLACES = np.array([[3, 0], [1, 1]], np.int32)


def run(name: str, *arguments: Any, **settings: Any) -> Any:
    given = [jnp.asarray(each) if isinstance(each, np.ndarray) else each for each in arguments]
    with jax.numpy_rank_promotion("allow"):
        return OPERATORS[f"aten.{name}"](*given, **settings)


def _padded() -> np.ndarray:
    return np.pad(ROWS[:, :2], ((0, 0), (1, 0)), constant_values=9.0)


def _scattered() -> np.ndarray:
    made = ROWS.copy()
    np.put_along_axis(made, PLACES, 9.0, 1)
    return made


def _added() -> np.ndarray:
    """Twice to one place: both are added."""
    made = ROWS.copy()
    for row, column in np.ndindex(PLACES.shape):
        made[row, PLACES[row, column]] += ROWS[row, column]
    return made


def _product() -> np.ndarray:
    return 2 * (ROWS @ ROWS.T @ ROWS) + ROWS[0]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (lambda: run("slice.Tensor", X, 2, 1, 2**63 - 1), X[..., 1:]),
        (lambda: run("slice.Tensor", X, 1, -2, 3), X[:, -2:3]),
        (lambda: run("select.int", X, 1, -1), X[:, -1]),
        (lambda: run("expand.default", ROWS[:, None], (-1, 3, -1)), np.stack([ROWS] * 3, 1)),
        (lambda: run("expand.default", ROWS, (5, -1, -1)), np.stack([ROWS] * 5)),
        (lambda: run("squeeze.dims", X[:1, :, :1], (0, 1, 2)), X[0, :, 0]),
        (lambda: run("split.Tensor", X, 3, 2)[1], X[..., 3:]),
        (lambda: run("split_with_sizes.default", X, (1, 3), -1)[1], X[..., 1:]),
        (lambda: run("constant_pad_nd.default", ROWS, (1, -2), 9.0), _padded()),
        (lambda: run("gather.default", ROWS, 1, PLACES), [[0.0, 0.5], [3.0, 3.0]]),
        (lambda: run("scatter.value", ROWS, 1, PLACES, 9.0), _scattered()),
        (lambda: run("scatter_add.default", ROWS, 1, PLACES, ROWS[:, :2]), _added()),
        (lambda: run("index.Tensor", X, (None, PLACES % 3)), X[:, PLACES % 3]),
        (lambda: run("topk.default", ROWS, 2, 1, False)[0], [[-1.0, 0.0], [-2.0, 1.0]]),
        (lambda: run("sort.default", ROWS, -1, True)[1], [[2, 0, 3, 1], [0, 1, 2, 3]]),
        (lambda: run("add.Tensor", ROWS, ROWS, alpha=2), 3 * ROWS),
        (lambda: run("rsub.Scalar", ROWS, 1), 1 - ROWS),
        (lambda: run("div.Tensor_mode", ROWS, 2.0, rounding_mode="trunc"), np.trunc(ROWS / 2)),
        (lambda: run("div.Tensor", np.array([1, 2], np.int32), 2), [0.5, 1.0]),
        (lambda: run("mean.dim", X, (0, 2), True), X.mean((0, 2), keepdims=True)),
        (lambda: run("mean.dim", X, (-1,)), X.mean(-1)),
        (lambda: run("sum.dim_IntList", X, ()), X.sum()),
        (lambda: run("sum.dim_IntList", ROWS > 0, (1,)), [2, 3]),
        (lambda: run("var.correction", ROWS, (1,), correction=1), ROWS.var(1, ddof=1)),
        (lambda: run("addmm.default", ROWS[0], ROWS @ ROWS.T, ROWS, alpha=2), _product()),
        (lambda: run("full.default", (2,), 3), np.array([3, 3], np.int32)),
    ],
)
def test_it_computes_what_torch_computes(found: Any, wanted: Any) -> None:
    made = np.asarray(found())
    assert made.shape == np.shape(wanted)
    np.testing.assert_allclose(made, wanted, rtol=1e-6)


def test_a_layer_norm_over_two_dimensions_is_one_row() -> None:
    (made,) = run("native_layer_norm.default", X, (3, 4), None, None, 1e-5)
    flat = X.reshape(2, -1)
    wanted = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(made, wanted.reshape(X.shape), atol=1e-5)


def test_a_token_past_the_table_reads_its_last_row() -> None:
    made = run("embedding.default", ROWS, np.array([[1], [7]], np.int32))
    np.testing.assert_array_equal(made[:, 0], ROWS[[1, 1]])
