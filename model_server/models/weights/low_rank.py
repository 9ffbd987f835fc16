"""Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685): their sizes and tensors.

An adapter adds `scale * B @ A` to a weight, A [r, in] and B [out, r]. Checkpoints name them after
the module whose weight they change, so that a weight's source says which tensors of an adapter
belong to it. DoRA (Liu et al. 2024, https://arxiv.org/abs/2402.09353) then gives each row of the
sum a length of its own, which multiplies the row's output by a gain. No jax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from model_server.models.weights.source import (
    GroupRows,
    RepeatedGroups,
    Tensor,
    Transposed,
    WeightSource,
)
from sax.errors import InvalidRequest

_WEIGHT = ".weight"
USUAL_RANK = 16  # of an adapter


@dataclass(frozen=True, slots=True)
class OwnAdapter:
    """An adapter of a model's own checkpoint, which answers prompts with media of a kind."""

    kind: str  # of the first encoder that the prompt has media of
    folder: str  # below the checkpoint's; "": the checkpoint's itself


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """Places for adapters beside the weights of a model."""

    places: int  # n: adapters in memory at once
    rank: int  # r: of an adapter, at most
    own: tuple[OwnAdapter, ...] = ()  # in the last places, from the load on

    @property
    def free(self) -> int:
        """Places for adapters that are published."""
        return self.places - len(self.own)

    @property
    def for_published(self) -> AdapterRoom | None:
        """The room without the checkpoint's own adapters; None: none is left."""
        return replace(self, places=self.free, own=()) if self.free else None

    def place_of(self, kind: str) -> int:
        """Return the place of the checkpoint's adapter for a kind of media; 0: it has none."""
        kinds = [each.kind for each in self.own]
        return 1 + self.free + kinds.index(kind) if kind in kinds else 0


@dataclass(frozen=True, slots=True)
class LowRankPair:
    """One weight's tensors of an adapter."""

    module: str  # as the checkpoint names it: model.layers.0.self_attn.q_proj
    down: WeightSource  # A [r, in]
    up: WeightSource  # B [out, r]
    length: WeightSource  # of DoRA: the length of each row of the sum, [out]
    weight: WeightSource  # of the base: W [out, in]


class FactorPart(Enum):
    """Which numbers of each adapter an array of factors holds; the scale is multiplied in."""

    DOWN = "A"  # [k r, in], of k modules one after the other
    UP = "B"  # [r, out], transposed
    GAIN = "gain"  # f32[out]: gain - 1; zeros but for DoRA


@dataclass(frozen=True, slots=True)
class LowRankFactor:
    """The adapter tensors that fill one array of factors, at most r rows of each."""

    pairs: tuple[LowRankPair, ...]  # DOWN: one after the other; else one
    part: FactorPart
    rank: int  # r


def low_rank_pair(source: WeightSource) -> LowRankPair | None:
    """Return the tensors of an adapter that change this weight; None if no one adapter module does.

    Adapters store both factors as plain linear layers, also beside a weight stored as [in, out].
    Rows that a model takes from a weight, or repeats, are taken from B.
    """
    stored = source.part if isinstance(source, Transposed) else source
    if isinstance(stored, Tensor):
        module = stored.name.removesuffix(_WEIGHT)
        if module == stored.name:
            return None
        names = down_name(module), up_name(module), length_name(module)
        return LowRankPair(module, *map(Tensor, names), weight=source)
    if isinstance(source, GroupRows | RepeatedGroups):
        pair = low_rank_pair(source.part)
        if pair is None:
            return None
        up, length = (replace(source, part=part) for part in (pair.up, pair.length))
        return replace(pair, up=up, length=length, weight=source)
    return None


def down_name(module: str) -> str:
    return f"{module}.lora_A{_WEIGHT}"


def up_name(module: str) -> str:
    return f"{module}.lora_B{_WEIGHT}"


def length_name(module: str) -> str:
    return f"{module}.lora_magnitude_vector"


def parse_adapters(values: Mapping[str, Any]) -> AdapterRoom | None:
    """Return the room for adapters. Raises InvalidRequest."""
    places, rank = values["MAX_ADAPTERS"], values["MAX_ADAPTER_RANK"]
    for key, value, allowed in (
        ("MAX_ADAPTERS", places, range(257)),
        ("MAX_ADAPTER_RANK", rank, range(1, 513)),
    ):
        if type(value) is not int or value not in allowed:
            wanted = f"from {allowed[0]} to {allowed[-1]}"
            raise InvalidRequest(
                f"{key} is {value!r}; it must be {wanted}", param=f"overrides.{key}"
            )
    if not places and rank != USUAL_RANK:
        raise InvalidRequest(
            f"MAX_ADAPTER_RANK is {rank}, and MAX_ADAPTERS leaves room for no adapter: set both",
            param="overrides.MAX_ADAPTER_RANK",
        )
    return AdapterRoom(places, rank) if places else None
