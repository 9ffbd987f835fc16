"""The absorbed form against the one of the paper, where every head has keys and values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.region import deliver
from model_server.kernels import reference
from model_server.kernels.pages import CacheShape, allocate
from model_server.models.layers.latent_attention import LatentAttention, LatentShape, latent_cache
from model_server.models.layers.rope import rope_of
from model_server.models.weights.sharding import layout_of
from model_server.models.weights.weight import Blueprint, WeightForm, blueprint
from tests.model_server.tiny import PAGE, one_prompt

SHAPE = LatentShape(
    embed=10,
    heads=3,
    plain_dim=4,
    rotated_dim=2,
    value_dim=5,
    latent=7,
    query_latent=None,
    scale=0.4,
    biased=False,
)
TOKENS = 11


def attention(shape: LatentShape = SHAPE, shards: int = 1) -> Blueprint:
    form = WeightForm(dtype=jnp.float32, layout=layout_of((1, 1, shards)))
    return blueprint(lambda: LatentAttention(shape, "attn", form))


def tensors() -> dict[str, np.ndarray]:
    """As a checkpoint has them."""
    rng, s = np.random.default_rng(0), SHAPE
    shapes = {
        "attn.q_proj.weight": (s.heads * s.query_dim, s.embed),
        "attn.kv_a_proj_with_mqa.weight": (s.latent + s.rotated_dim, s.embed),
        "attn.kv_a_layernorm.weight": (s.latent,),
        "attn.kv_b_proj.weight": (s.heads * (s.plain_dim + s.value_dim), s.latent),
        "attn.o_proj.weight": (s.embed, s.heads * s.value_dim),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


class Held:
    """The tensors as weights are read from."""

    def shape(self, name: str) -> tuple[int, ...]:
        return tensors()[name].shape

    def read(self, name: str, region: Any = None, out: Any = None) -> np.ndarray:
        return deliver(tensors()[name][region or ()], out)


def assembled() -> Any:
    module, held = attention(), Held()
    whole = [tuple(slice(0, n) for n in d.shape) for d in module.declarations]
    sources = [d.source for d in module.declarations]
    leaves = [s.read(held, region) for s, region in zip(sources, whole, strict=True)]
    return module.assemble([jnp.asarray(leaf, jnp.float32) for leaf in leaves])


def expanded(x: np.ndarray, rotate: Any) -> np.ndarray:
    """f32[T, D], by making the keys and values of every head."""
    s, t = SHAPE, {name.split(".")[1]: array for name, array in tensors().items()}
    q = (x @ t["q_proj"].T).reshape(TOKENS, s.heads, s.query_dim)
    compressed = x @ t["kv_a_proj_with_mqa"].T
    latent = compressed[:, : s.latent]
    latent = latent / np.sqrt((latent**2).mean(-1, keepdims=True) + 1e-6) * t["kv_a_layernorm"]
    both = (latent @ t["kv_b_proj"].T).reshape(TOKENS, s.heads, -1)
    shared = np.asarray(rotate(compressed[:, None, s.latent :])).repeat(s.heads, 1)
    q = np.concatenate([q[..., : s.plain_dim], rotate(q[..., s.plain_dim :])], -1)
    k = np.concatenate([both[..., : s.plain_dim], shared], -1)
    scores = np.einsum("thd,shd->hts", q, k) * s.scale
    scores = np.where(np.tril(np.ones((TOKENS, TOKENS))), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("hts,shv->thv", weights, both[..., s.plain_dim :])
    return mixed.reshape(TOKENS, -1) @ t["o_proj"].T


def test_the_absorbed_form_equals_the_expanded_one() -> None:
    x = np.random.default_rng(1).normal(size=(TOKENS, SHAPE.embed)).astype(np.float32)
    rotation = rope_of({}, SHAPE.rotated_dim).at(jnp.arange(TOKENS))
    cache = latent_cache(layers=1, heads=4, latent=SHAPE.latent, rotated=SHAPE.rotated_dim)(1)
    pages = allocate(cache, 2, PAGE, jnp.dtype("float32"))[0]
    idle = np.concatenate([np.zeros((1, SHAPE.embed), np.float32), x])
    positions = jnp.asarray([0, *range(TOKENS)])
    batch, rotated = one_prompt(TOKENS, reference.KERNEL), rope_of({}, SHAPE.rotated_dim)
    layer, given = assembled(), jnp.asarray(idle)
    found, _ = jax.jit(lambda x, at: layer(x, rotated.at(at), pages, batch))(given, positions)
    wanted = expanded(x, rotation)
    np.testing.assert_allclose(found[1:], wanted, atol=1e-5 * np.abs(wanted).max(), rtol=1e-4)


def test_a_token_takes_up_one_latent_and_one_rotated_key_for_all_heads() -> None:
    cache = latent_cache(layers=61, heads=128, latent=512, rotated=64)
    assert (cache(1).query_axis, cache(8).query_axis) == (None, "heads")
    assert cache(8).kv_heads == 1
    assert cache(8).axis is None
    assert sum(cache(8).bytes_by_layer(1, jnp.dtype("bfloat16"))) == 61 * (512 + 64) * 2
    assert sum(cache(8).bytes_by_layer(1, jnp.dtype("int8"))) == 61 * (512 + 64 + 4)


def test_nothing_is_allocated_for_values() -> None:
    pages = allocate(
        latent_cache(layers=1, heads=4, latent=6, rotated=2)(1), 3, 4, jnp.dtype("int8")
    )[0]
    assert (pages.values, pages.value_scales) == (None, None)
    assert pages.keys.shape == (4, 1, 8, 4)
    other = CacheShape(layers=1, kv_heads=1, key_dim=8, value_dim=6)
    assert allocate(other, 3, 4, jnp.dtype("int8"))[0].values is not None


def test_heads_are_divided_and_latents_are_not() -> None:
    divided = {d.path: d.axes for d in attention(shards=3).declarations}
    assert divided["queries.kernel"] == ("heads", "embed")
    assert divided["key_up"] == divided["value_up"] == ("heads", None, None)
    assert divided["out.kernel"] == ("embed", "heads")
    assert divided["down.kernel"] == (None, "embed")
    whole = {d.path: d.axes for d in attention(shards=2).declarations}
    assert whole["key_up"] == (None, None, None)
