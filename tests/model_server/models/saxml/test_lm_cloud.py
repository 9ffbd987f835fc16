"""LmCloudSpmd as Saxml registers it."""

from __future__ import annotations

import math

import pytest

from model_server.models.registry import make_recipe
from model_server.models.saxml.lm_cloud import model_classes
from model_server.models.weights.sharding import layout_of

PACKAGE = "saxml.server.pax.lm.params.lm_cloud."
MESHES = {
    "LmCloudSpmd2B": 4,
    "LmCloudSpmd2BTest": 1,
    "LmCloudSpmd2B4Test": 4,
    "LmCloudSpmd2B8Test": 8,
    "LmCloudSpmd2B16Test": 16,
    "LmCloudSpmd2B32Test": 32,
    "LmCloudSpmd175B": 16,
    "LmCloudSpmd175BTest": 16,
    "LmCloudSpmd175B32Test": 32,
    "LmCloudSpmd175B64Test": 64,
    "LmCloudSpmd175B128Test": 128,
    "LmCloudSpmd175B256Test": 256,
}


def test_every_variant_has_its_mesh() -> None:
    found = {
        entry.path.removeprefix(PACKAGE): math.prod(entry.overridable["ICI_MESH_SHAPE"])
        for entry in model_classes()
    }
    assert found == MESHES


def test_the_recipe_serves_as_saxml_declares_it() -> None:
    small, large = (
        make_recipe(f"{PACKAGE}LmCloudSpmd{name}", None, {}) for name in ("2BTest", "175B32Test")
    )
    assert (small.samples, small.max_context, small.defaults.max_tokens) == (2, 256 + 32, 32)
    assert small.defaults.temperature == pytest.approx(0.1)
    assert (large.samples, large.max_context, large.defaults.max_tokens) == (1, 256, 128)
    assert (large.defaults.temperature, large.defaults.top_p) == (0.5, 0.95)


def test_the_tutorials_model_takes_a_byte_for_each_of_its_parameters() -> None:
    """175B on 32 chips of 16 GB: 174.3 billion parameters in int8, and scales."""
    module = make_recipe(f"{PACKAGE}LmCloudSpmd175B32Test", None, {}).blueprint(
        layout_of((1, 1, 32))
    )
    assert sum(math.prod(weight.shape) for weight in module.declarations) == pytest.approx(
        174.3e9, rel=1e-3
    )
    assert module.bytes == pytest.approx(174.4e9, rel=1e-3)


def test_more_kv_heads_are_no_key_of_it() -> None:
    assert "NUM_KV_HEADS" not in model_classes()[0].overridable
