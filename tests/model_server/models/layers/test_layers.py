"""Tables of token vectors on TPUs: whole lanes, so that a step reads rows and copies none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.models.layers.layers import Embedding
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import WeightForm, blueprint
from tests.model_server.tpu_compiler import compiled, needs_compiler, one_device

VOCAB, SIZE, LANES = 4096, 200, 256
TOKENS = jnp.asarray([5, 0, 4095])


@needs_compiler
def test_vectors_and_logits_are_those_without_the_padding() -> None:
    form = WeightForm(dtype=jnp.float32, layout=Layout(one_device("v5e")))
    made = blueprint(lambda: Embedding(VOCAB, SIZE, ("t",), form=form))
    (declared,) = made.declarations
    assert declared.shape == (VOCAB, LANES)
    table = np.random.default_rng(0).normal(size=(VOCAB, SIZE)).astype(np.float32)
    padding = np.full((VOCAB, LANES - SIZE), 7.0, np.float32)  # even if it were not zeros
    embedding = made.assemble([jnp.concatenate([table, padding], axis=1)])
    np.testing.assert_array_equal(embedding(TOKENS), table[np.asarray(TOKENS)])
    x = np.ones((2, SIZE), np.float32)
    np.testing.assert_allclose(embedding.logits(jnp.asarray(x)), x @ table.T, atol=1e-4)


def test_elsewhere_tables_are_as_wide_as_the_model() -> None:
    embedding = nnx.eval_shape(lambda: Embedding(VOCAB, SIZE, form=WeightForm()))
    assert embedding.table.get_value().shape == (VOCAB, SIZE)


@needs_compiler
def test_the_compiler_copies_no_table_to_read_rows_of_it() -> None:
    layout = Layout(one_device("v5e"))
    made = blueprint(lambda: Embedding(50272, 2880, form=WeightForm(layout=layout)))
    (declared,) = made.declarations
    (leaf,) = declared.leaves
    sharding = layout.sharding(leaf.shape, leaf.axes, leaf.bits)
    table = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    tokens = jax.ShapeDtypeStruct((32,), jnp.int32, sharding=layout.sharding((32,), (None,), 32))
    program = compiled(lambda table, tokens: made.assemble([table])(tokens), table, tokens)
    assert program.memory_analysis().temp_size_in_bytes < table.size // 4
