"""Reads weights for a controller on another machine: beside the devices, from files here.

Every process of an island reads what its own devices hold. Nothing is read that does not lie below
a root that the operator named.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import with_whole_names, without, without_prefixes
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.roots import CheckpointRoots
from model_server.loading.beside_devices.weight_reading import WeightReading, size_of
from model_server.loading.checkpoint_opener import Openings
from model_server.loading.weights import read_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import AXES, Layout
from model_server.models.weights.weight import Declaration, Leaf
from sax.errors import CheckpointError, NotFound, PermissionDenied, Unavailable
from sax.types import Progress

_OPEN_S = 60.0
_MOST_KEPT = 8  # models whose weights were declared lately: a load asks many times for one


@dataclass(frozen=True)
class PlannedWeights:
    """Weights that a controller asks for, as they are declared here."""

    layout: Layout
    declared: Sequence[Declaration]
    unused: tuple[str, ...]  # prefixes of tensors that the model ignores
    names: frozenset[str]  # of all tensors of the model

    @property
    def leaves(self) -> Iterator[Leaf]:
        return (leaf for weight in self.declared for leaf in weight.leaves)

    def own(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint with no other tensors; the controller looks at those."""
        whole = with_whole_names(without_prefixes(checkpoint, self.unused), self.names)
        return without(whole, set(whole.names()) - _names(self.declared))


class WeightReader:
    """Thread-safe."""

    def __init__(self, roots: Sequence[str]) -> None:
        """roots: folders and bucket URLs; without any, nothing is read."""
        self._roots = tuple(roots)
        self._inside = CheckpointRoots(roots)
        self._openings = Openings(_OPEN_S)
        self._kept: OrderedDict[Any, PlannedWeights] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def offered(self) -> bool:
        return bool(self._roots)

    def plan(self, asked: WeightReading, devices: Sequence[Any]) -> PlannedWeights:
        """Derive what to read, before any is. devices: in the order of the mesh.

        Raises PermissionDenied for a place that is not allowed, NotFound if it, its model path or
        its files are not those of the controller, CheckpointError if it cannot be opened.
        """
        self._check_place(asked)
        whole = self._declared(asked, devices)
        some = slice(asked.first, asked.first + asked.count)
        return replace(whole, declared=whole.declared[some])

    def read(
        self, asked: WeightReading, planned: PlannedWeights, wanted: Callable[[], bool]
    ) -> list[jax.Array]:
        """Read the arrays, in the order of their leaves; `wanted` may turn False meanwhile.

        Raises CheckpointError naming the tensor at fault, Unavailable if nobody wants them.
        """

        def report(progress: Progress) -> None:
            if not wanted():
                raise Unavailable("its client is gone")

        with self._opened(asked.checkpoint) as checkpoint:
            return read_weights(planned.declared, planned.own(checkpoint), report, planned.layout)

    def _check_place(self, asked: WeightReading) -> None:
        path = asked.checkpoint
        if not self._roots:
            raise PermissionDenied(
                f"{path} is not read here: this worker was started without --checkpoint_root"
            )
        try:
            self._openings.run(path, lambda: self._inside.check(path))
        except CheckpointError as exc:
            raise PermissionDenied(f"{exc.text} (on this worker: --checkpoint_root)") from exc
        try:
            found = self._openings.run(path, lambda: size_of(path))
        except OSError as exc:
            raise NotFound(f"{path} cannot be read: {exc.strerror or exc}") from exc
        if found != asked.size:
            raise NotFound(
                f"{path} is {found[1]} bytes in {found[0]} files here and {asked.size[1]} bytes in "
                f"{asked.size[0]} files where the model server is: copy it to both"
            )

    def _declared(self, asked: WeightReading, devices: Sequence[Any]) -> PlannedWeights:
        """Return all weights of the model, which take a second to declare, from memory if there."""
        key = (
            asked.checkpoint,
            asked.size,
            asked.model_path,
            tuple(sorted(asked.overrides.items())),
            asked.stage,
            asked.mesh,
            tuple(devices),
        )
        with self._lock:
            if asked.first == 0 or key not in self._kept:  # a load begins: files may have changed
                self._kept[key] = self._declare(asked, devices)
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]

    def _declare(self, asked: WeightReading, devices: Sequence[Any]) -> PlannedWeights:
        with self._opened(asked.checkpoint) as checkpoint:
            recipe = make_recipe(asked.model_path, checkpoint.config, asked.overrides)
            assert isinstance(recipe, Recipe), "only language models have islands"
            recipe = recipe if asked.stage is None else recipe.cut()[asked.stage]
            layout = Layout(Mesh(np.asarray(devices).reshape(asked.mesh), AXES), recipe.rules)
            declared = recipe.blueprint(layout, checkpoint).declarations
            return PlannedWeights(layout, declared, recipe.unused, frozenset(_names(declared)))

    @contextmanager
    def _opened(self, path: str) -> Iterator[Checkpoint]:
        def late(opened: Checkpoint) -> None:
            opened.close()

        with closing(self._openings.run(path, lambda: open_checkpoint(path), late)) as opened:
            yield opened


def _names(declared: Sequence[Declaration]) -> set[str]:
    return {name for weight in declared for name in weight.source.names}
