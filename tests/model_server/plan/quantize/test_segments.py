"""A model read a segment at a time computes what it does whole, and shows what it multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.checkpoints.checkpoint_view import without_prefixes
from model_server.checkpoints.huggingface.packed_writer import PackedForm
from model_server.checkpoints.opening import open_checkpoint
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.observed import Moments, Observed
from model_server.plan.quantize.packable import packable
from model_server.plan.quantize.segments import SegmentedModel, run
from tests.model_server.models.family_cases import (
    F32,
    checkpoint_of,
    config_of,
    first_of_each_family,
    golden_of,
    is_encoder,
    overrides_of,
)

CASES = [
    name
    for name in first_of_each_family()
    if not is_encoder(name) and "model_path" not in config_of(name)
]


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_every_family_shows_what_its_matrices_multiply(name: str) -> None:
    golden = golden_of(name)
    prompt = np.asarray(golden["prompt"], np.int32)[None]
    with closing(open_checkpoint(str(checkpoint_of(name)))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, F32 | overrides_of(name))
        assert isinstance(recipe, Recipe)
        model = SegmentedModel(recipe, without_prefixes(checkpoint, recipe.unused))
        chosen = packable(recipe, model.checkpoint, PackedForm(8, None, "float32"))
        moments = Moments(chosen)

        def watched(index: int, values: Sequence[jax.Array]) -> Sequence[Any]:
            if index not in chosen:
                return values
            outer = model.blueprint.declarations[index].shape[:-2]
            return [Observed(values[0], jnp.full(outer, index, jnp.int32), moments)]

        x = model.embedded(prompt)
        with jax.disable_jit():
            for stage in model.stages:
                x = run(model.segment(stage, watched), x, 1)
        made = np.asarray(model.logits(x))
    wanted = golden["logits"]
    np.testing.assert_allclose(made, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)
    assert set(moments.sums) == set(chosen)
    for index, seen in moments.sums.items():
        each = model.blueprint.declarations[index]
        assert seen.shape == (each.shape[-1],) * 2
        if len(each.shape) == 2:
            # Some multiply the same rows twice, for their queries and to choose tokens.
            assert moments.rows[index] % prompt.size == 0, each.path
