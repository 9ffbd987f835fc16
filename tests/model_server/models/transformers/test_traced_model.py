"""A traced model is computed as its graphs say. Needs no torch: the graphs are written here."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels import reference
from model_server.kernels.pages import CacheShape, allocate
from model_server.models.layers.layers import Embedding, Linear
from model_server.models.transformers.graph import (
    AttentionCall,
    Graph,
    Operation,
    StoredParameter,
    TracedGraphs,
    Value,
)
from model_server.models.transformers.traced_model import TracedModel, unknown_operations
from model_server.models.weights.source import Transposed
from model_server.models.weights.weight import WeightForm, blueprint
from tests.model_server.tiny import PAGE, one_prompt

VOCAB, EMBED, COUNT = 7, 4, 11
CALL = AttentionCall(
    heads=2, kv_heads=1, key_dim=2, value_dim=2, scale=0.5, softcap=None, window=3, chunk=None
)


class Writer:
    """Writes a graph, one operation after the other."""

    def __init__(self, *inputs: str) -> None:
        self._inputs, self._made = inputs, list[Operation]()

    def of(self, name: str) -> Value:
        return Value(self._inputs.index(name))

    def add(self, name: str, *arguments: Any, **settings: Any) -> Value:
        self._made.append(Operation(name, arguments, settings))
        return Value(len(self._inputs) + len(self._made) - 1)

    def graph(self, output: Value) -> Graph:
        return Graph(self._inputs, tuple(self._made), output)


def hidden_graph() -> Graph:
    """x + out(attention(q(x), k(x), k(x))), q a kernel [in, out]; positions scale x."""
    w = Writer("table", "q", "q_bias", "k", "out", "scales", "tokens", "positions", "mask")
    x = w.add("aten.embedding.default", w.of("table"), w.of("tokens"))
    at = w.add("aten.embedding.default", w.of("scales"), w.of("positions"))
    x = w.add("aten.mul.Tensor", x, at)
    size = w.add("aten.sym_size.int", w.of("tokens"), 0)
    flat = w.add("aten.view.default", x, (size, EMBED))
    q = w.add("aten.addmm.default", w.of("q_bias"), flat, w.of("q"))
    q = w.add("aten.view.default", q, (size, 2, 1, 2))
    k = w.add("aten.linear.default", x, w.of("k"))
    k = w.add("aten.view.default", k, (size, 1, 1, 2))
    mixed = w.add("sax.attend.default", q, k, k, None, 0)
    mixed = w.add("aten.view.default", mixed, (size, 1, -1))
    return w.graph(w.add("aten.add.Tensor", x, w.add("aten.linear.default", mixed, w.of("out"))))


def logits_graph() -> Graph:
    w = Writer("table", "rows")
    return w.graph(w.add("aten.linear.default", w.of("rows"), w.of("table")))


SHAPES = {
    "table": (VOCAB, EMBED),
    "q": (EMBED, 4),
    "q_bias": (4,),
    "k": (2, EMBED),
    "out": (EMBED, 4),
}
SCALES = np.linspace(0.5, 1.5, 64 * EMBED, dtype=np.float32).reshape(64, EMBED)


def traced(**changes: Any) -> TracedGraphs:
    made: dict[str, Any] = {
        "class_name": "TinyForCausalLM",
        "hidden": hidden_graph(),
        "logits": logits_graph(),
        "attention": (CALL,),
        "experts": (),
        "shapes": SHAPES,
        "stored": {name: StoredParameter((f"model.{name}.weight",)) for name in SHAPES},
        "whole_numbers": frozenset(),
        "rowwise": frozenset({"q", "k", "out", "table"}),
        "constants": {"scales": SCALES},
        "unread": (),
        "embed": EMBED,
        "vocab": VOCAB,
    }
    return TracedGraphs(**made | changes)


def weights(module: Any) -> dict[str, np.ndarray]:
    """The module's weights by the names of their tensors, set to random numbers."""
    rng, found = np.random.default_rng(0), dict[str, np.ndarray]()
    for declared in module.declarations:
        (name,) = declared.source.names
        found[name] = rng.normal(size=declared.shape).astype(np.float32)
    return found


def expected(w: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """f32[T, V], token by token."""
    x = w["table"][tokens] * SCALES[: len(tokens)]
    q = (x @ w["q"].T + w["q_bias"]).reshape(-1, 2, 2)  # as declared, [out, in]
    k = x @ w["k"].T
    mixed = np.zeros((len(tokens), 2, 2), np.float32)
    for t in range(len(tokens)):
        seen = k[max(0, t - 2) : t + 1]
        for head in range(2):
            scores = np.exp(seen @ q[t, head] * 0.5)
            mixed[t, head] = scores / scores.sum() @ seen
    return (x + mixed.reshape(-1, 4) @ w["out"].T) @ w["table"].T


def test_a_traced_model_attends_in_the_pages_and_gives_logits() -> None:
    form = WeightForm(dtype=jnp.float32)
    module = blueprint(lambda: TracedModel(traced(), form))
    held = weights(module)
    model = module.assemble([jnp.asarray(each) for each in held.values()])
    tokens = np.random.default_rng(1).integers(0, VOCAB, COUNT)
    cache = CacheShape(layers=1, kv_heads=1, key_dim=2, value_dim=2)
    pages = allocate(
        cache, -(-COUNT // PAGE), PAGE, jnp.dtype("float32"), shapes=reference.KERNEL.shapes
    )
    padded = jnp.asarray([0, *tokens], jnp.int32)  # the idle decode row, then the prompt
    positions = jnp.asarray([0, *range(COUNT)], jnp.int32)
    hidden, _ = jax.jit(model)(padded, positions, pages, one_prompt(COUNT))
    named = {name.split(".")[1]: each for name, each in held.items()}
    np.testing.assert_allclose(model.logits(hidden[1:]), expected(named, tokens), rtol=2e-5)


def test_matrices_of_rows_become_layers_and_a_tied_table_is_the_head() -> None:
    model = TracedModel(traced(), WeightForm(dtype=jnp.float32))
    parts = dict(zip(model.names, model.parts, strict=True))
    assert isinstance(model.embedding, Embedding)
    assert model.head is None
    assert {name for name, part in parts.items() if isinstance(part, Linear)} == {"q", "k", "out"}
    assert parts["q"].biased
    assert isinstance(parts["q"].kernel.source, Transposed), "addmm multiplies by [in, out]"
    assert "q_bias" not in parts


def test_a_matrix_that_multiplies_more_than_one_row_per_token_stays_an_array() -> None:
    model = TracedModel(traced(rowwise=frozenset({"q", "out"})), WeightForm(dtype=jnp.float32))
    parts = dict(zip(model.names, model.parts, strict=True))
    assert not isinstance(parts["k"], Linear)


def test_operations_that_are_not_known_are_named() -> None:
    w = Writer("table", "tokens", "positions", "mask")
    odd = w.graph(w.add("aten.nonzero.default", w.of("tokens")))
    assert unknown_operations(traced(hidden=odd)) == ["aten.nonzero.default"]
    assert unknown_operations(traced()) == []
