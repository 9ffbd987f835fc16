"""Families whose queries choose tokens, in steps through the TPU kernels, interpreted."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from model_server.kernels.tpu.attention import TpuAttention
from model_server.models.weights.sharding import AXES
from tests.model_server.models.family_cases import golden_of, load
from tests.model_server.models.in_steps import InSteps

MESH = Mesh(np.asarray(jax.devices("cpu")[:1]).reshape(1, 1, 1), AXES)
KERNEL = TpuAttention(MESH, None, None, interpret=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["axk2", "deepseek_v32", "glm_moe_dsa", "mistral_large4_own"])
def test_steps_give_the_logits_of_the_whole_prompt(name: str) -> None:
    """More tokens than are chosen; layers of GLM-5 take the choice of an earlier one."""
    golden = golden_of(name)
    model, recipe = load(name)
    steps = InSteps(model, recipe, len(golden["prompt"]), KERNEL)
    found, wanted = steps.logits(golden["prompt"], (6, 6), alone=True), golden["logits"]
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)
