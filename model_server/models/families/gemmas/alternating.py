"""Gemma 3n's streams: several versions of a token, of which each layer computes one.

Source: Baykal et al. 2023 (arXiv:2301.13310, alternating updates). A layer predicts all versions
from all, replaces the active one by its output, and corrects the others by how far it was off.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.layers.layers import Linear, RmsNorm
from model_server.models.weights.weight import WeightForm, weight

_LEAST = 1e-5  # mean square of a version


class Alternation(nnx.Module):
    """Predicts and corrects the versions f32[T, A, D] around one layer."""

    def __init__(
        self,
        embed: int,
        versions: int,
        active: int,
        prefix: str,
        *,
        epsilon: float,
        scaled: bool,
    ) -> None:
        self.active, self.scaled, self.shrink = active, scaled, 1 / embed

        # Small, and every version hinges on them: float32, on every device.
        def matrix(name: str, *shape: int) -> nnx.Param:
            axes, names = (None,) * len(shape), (f"{prefix}.{name}",)
            return weight(shape, axes, names, dtype=jnp.float32, spread=0.02)

        self.norm = RmsNorm(embed, (f"{prefix}.router_norm.weight",), epsilon=epsilon)
        self.router = matrix("modality_router.weight", versions, embed)
        self.prediction = matrix("prediction_coefs.weight", versions**2, versions)
        self.correction = matrix("correction_coefs.weight", versions, versions)
        self.output_scale = matrix("correct_output_scale", embed)

    def predict(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, A, D] to f32[T, A, D]."""
        found = self._routed(x[:, self.active], self.prediction[...])
        shares = found.reshape(x.shape[0], x.shape[1], x.shape[1])
        return x + jnp.einsum("tba,tad->tbd", shares, x, precision="highest")

    def correct(self, predicted: jax.Array, made: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Take in a layer's output f32[T, D].

        Returns f32[T, A, D] and the active version, scaled: f32[T, D].
        """
        off = made - predicted[:, self.active]
        shares = self._routed(made, self.correction[...]) + 1.0
        corrected = predicted + shares[..., None] * off[:, None]
        first = corrected[:, self.active]
        return corrected, first * self.output_scale[...][None] if self.scaled else first

    def _routed(self, x: jax.Array, coefficients: jax.Array) -> jax.Array:
        """Maps f32[T, D] to f32[T, N] by coefficients f32[N, A]."""
        normed = self.norm(x) * self.shrink
        routed = jnp.tanh(jnp.einsum("td,ad->ta", normed, self.router[...], precision="highest"))
        return jnp.einsum("ta,na->tn", routed, coefficients, precision="highest")


class Residual(nnx.Module):
    """x + norm(right(left(x))): a residual through a narrow matrix ("LAuReL", arXiv:2411.07501)."""

    def __init__(
        self, embed: int, rank: int, prefix: str, form: WeightForm, *, epsilon: float
    ) -> None:
        left, right = (f"{prefix}.linear_{side}.weight" for side in ("left", "right"))
        self.left = Linear(rank, embed, (None, "embed"), (left,), form=form)
        self.right = Linear(embed, rank, ("embed", None), (right,), form=form)
        self.norm = RmsNorm(embed, (f"{prefix}.post_laurel_norm.weight",), epsilon=epsilon)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.norm(self.right(self.left(x)))


class _Versions(nnx.Module):
    """Projections of all versions but the first, made as long as the first one is."""

    def __init__(self, embed: int, versions: int, name: str, form: WeightForm) -> None:
        self.projections = nnx.List(
            [
                Linear(embed, embed, (None, "embed"), (f"{name}.{at}.weight",), form=form)
                for at in range(versions - 1)
            ]
        )

    def projected(self, inputs: jax.Array) -> jax.Array:
        """Maps f32[T, A, D] to f32[T, A, D]."""
        first = inputs[:, 0]
        size = jnp.sqrt(jnp.mean(jnp.square(first), axis=-1, keepdims=True))
        made = [first]
        for at, projection in enumerate(self.projections, 1):
            x = projection(inputs[:, at])
            square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
            made.append(x * size / jnp.sqrt(jnp.maximum(square, _LEAST)))
        return jnp.stack(made, axis=1)


class Expanded(_Versions):
    """Maps embeddings f32[T, D] to versions f32[T, A * D]."""

    def __call__(self, x: jax.Array) -> jax.Array:
        inputs = jnp.stack([x] * (1 + len(self.projections)), axis=1)
        return self.projected(inputs).reshape(x.shape[0], -1)


class Merged(_Versions):
    """Maps versions f32[T, A * D] to their normed mean f32[T, D]."""

    def __init__(
        self, embed: int, versions: int, name: str, form: WeightForm, norm: nnx.Module
    ) -> None:
        super().__init__(embed, versions, name, form)
        self.norm = norm

    def __call__(self, x: jax.Array) -> jax.Array:
        inputs = x.reshape(x.shape[0], 1 + len(self.projections), -1)
        return self.norm(jnp.mean(self.projected(inputs), axis=1))
