"""Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685): their sizes and tensors.

An adapter adds `scale * B @ A` to a weight, A [r, in] and B [out, r]. Checkpoints name them after
the module whose weight they change, so that a weight's source says which tensors of an adapter
belong to it. No jax.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from model_server.models.weights.source import (
    GroupRows,
    RepeatedGroups,
    Tensor,
    Transposed,
    WeightSource,
)

_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """Places for adapters beside the weights of a model."""

    places: int  # n: adapters in memory at once
    rank: int  # r: of an adapter, at most


@dataclass(frozen=True, slots=True)
class LowRankPair:
    """One weight's tensors of an adapter."""

    module: str  # as the checkpoint names it: model.layers.0.self_attn.q_proj
    down: WeightSource  # A [r, in]
    up: WeightSource  # B [out, r]


@dataclass(frozen=True, slots=True)
class LowRankFactor:
    """The adapter tensors that fill one array of factors, at most r rows of each."""

    pairs: tuple[LowRankPair, ...]  # down: one after the other; up: one
    down: bool
    rank: int  # r


def low_rank_pair(source: WeightSource) -> LowRankPair | None:
    """Return the tensors of an adapter that change this weight; None if no one adapter module does.

    Adapters store both factors as plain linear layers, also beside a weight stored as [in, out].
    Rows that a model takes from a weight, or repeats, are taken from B.
    """
    if isinstance(source, Transposed) and isinstance(source.part, Tensor):
        source = source.part
    if isinstance(source, Tensor):
        module = source.name.removesuffix(_WEIGHT)
        if module == source.name:
            return None
        return LowRankPair(module, Tensor(down_name(module)), Tensor(up_name(module)))
    if isinstance(source, GroupRows | RepeatedGroups):
        pair = low_rank_pair(source.part)
        return pair and replace(pair, up=replace(source, part=pair.up))
    return None


def down_name(module: str) -> str:
    return f"{module}.lora_A{_WEIGHT}"


def up_name(module: str) -> str:
    return f"{module}.lora_B{_WEIGHT}"
