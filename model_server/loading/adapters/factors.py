"""Reads an adapter's factors for the devices of this host, in the form that programs take.

A device gets the part of the factors that belongs to its part of the weights.
"""

from __future__ import annotations

import jax
import numpy as np

from model_server.checkpoints.huggingface.peft import PeftAdapter
from model_server.checkpoints.region import Region
from model_server.loading.weights import place
from model_server.models.weights.low_rank import LowRankFactor, LowRankPair
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Blueprint, Declaration, Leaf
from sax.errors import CheckpointError
from sax.format import listing, quoted

_NAMED = 5  # modules that one error names


def read_factors(adapter: PeftAdapter, blueprint: Blueprint, layout: Layout) -> list[jax.Array]:
    """Return an array per factor of the blueprint, without its dimension of places.

    Zeros where the adapter has none. Raises CheckpointError for numbers that are not finite: they
    would spread to the rows of other adapters. Check with `check_adapter` first.
    """
    return [_placed(adapter, each, layout) for each in blueprint.declarations if each.low_rank]


def check_adapter(adapter: PeftAdapter, whole: Blueprint) -> None:
    """Raise CheckpointError unless all of the adapter fits the model.

    whole: the model with all its layers, so that every host raises the same.
    """
    pairs, rank = _pairs(whole)
    if unknown := sorted(adapter.modules.keys() - pairs.keys()):
        named = ", ".join(map(quoted, unknown[:_NAMED]))
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        kinds = listing(sorted({module.rpartition(".")[2] for module in pairs}))
        raise CheckpointError(
            f"the adapter changes {named}{more}, which take no adapter in this model; those that "
            f"do are {kinds}"
        )
    for module, adapted in adapter.modules.items():
        if adapted.rank > rank:
            raise CheckpointError(
                f"the adapter's rank is {adapted.rank} at {quoted(module)}, but its base has room "
                f"for {rank}: publish the base with MAX_ADAPTER_RANK={adapted.rank}"
            )
    for declared in whole.declarations:
        if declared.low_rank:
            _check_shapes(adapter, declared, declared.low_rank)


def _pairs(whole: Blueprint) -> tuple[dict[str, LowRankPair], int]:
    filled = [each.low_rank for each in whole.declarations if each.low_rank]
    pairs = {pair.module: pair for factor in filled for pair in factor.pairs}
    return pairs, min((factor.rank for factor in filled), default=0)


def _check_shapes(adapter: PeftAdapter, declared: Declaration, factor: LowRankFactor) -> None:
    for pair in factor.pairs:
        if (module := adapter.modules.get(pair.module)) is None:
            continue
        width = declared.shape[-1]
        source = pair.down if factor.down else pair.up
        wanted = (module.rank, width) if factor.down else (width, module.rank)
        if source.shape(adapter) != wanted:
            name = source.names[0]
            raise CheckpointError(
                f"tensor {quoted(name)} is {list(adapter.shape(name))}, which does not fit the "
                f"base: it was trained for another model"
            )


def _placed(adapter: PeftAdapter, declared: Declaration, layout: Layout) -> jax.Array:
    factor = declared.low_rank
    assert factor is not None
    leaf = Leaf("", declared.shape[1:], declared.dtype, declared.axes[1:])

    def read(region: Region) -> np.ndarray:
        numbers = _down(adapter, factor, region) if factor.down else _up(adapter, factor, region)
        numbers = numbers.astype(leaf.dtype)
        if not np.isfinite(numbers.astype(np.float32)).all():
            raise CheckpointError(
                f"the adapter has numbers at {quoted(factor.pairs[0].module)} that are not finite "
                f"in {np.dtype(leaf.dtype).name}: it is damaged, or its training diverged"
            )
        return numbers

    return place(leaf, layout, read)


def _down(adapter: PeftAdapter, factor: LowRankFactor, region: Region) -> np.ndarray:
    """f32[k r, in]: A of each module, in r rows each."""
    rows, columns = region
    made = np.zeros((len(factor.pairs) * factor.rank, columns.stop - columns.start), np.float32)
    for index, pair in enumerate(factor.pairs):
        if module := adapter.modules.get(pair.module):
            wanted = (slice(0, module.rank), columns)
            first = index * factor.rank
            made[first : first + module.rank] = pair.down.read(adapter, wanted, np.float32)
    return made[rows]


def _up(adapter: PeftAdapter, factor: LowRankFactor, region: Region) -> np.ndarray:
    """f32[r, out]: scale * B of the module, transposed."""
    rows, columns = region
    made = np.zeros((factor.rank, columns.stop - columns.start), np.float32)
    (pair,) = factor.pairs
    if module := adapter.modules.get(pair.module):
        found = pair.up.read(adapter, (columns, slice(0, module.rank)), np.float32)
        made[: module.rank] = module.scale * found.T
    return made[rows]
