"""Copies of a language model on the islands of a proxy server: planned, built, loaded again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.disaggregation.island_moves import IslandMoves
from model_server.disaggregation.kv_transfers import TransferServer
from model_server.engine.compiling import COMPILED_HERE
from model_server.engine.islands.island_runner import IslandRunner
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import Runner
from model_server.islands import Copy, answers, copies, copy_name, islands
from model_server.loading.checkpoint_opener import CheckpointOpener, Report
from model_server.loading.island_loads import IslandLoads
from model_server.loading.lm_loading import LmLoad, run_all
from model_server.loading.served_recipe import recipe_of
from model_server.loading.stages.island_stages import IslandStagesLoad
from model_server.models.recipe import Recipe
from sax.errors import InvalidRequest
from sax.types import ModelSpec, Progress

AnyIslandLoad = LmLoad | IslandStagesLoad


class IslandCopies:
    """Loads the copies of models; each is all of one, so any can go on with another's sequences."""

    def __init__(
        self,
        config: ModelServerConfig,
        opener: CheckpointOpener,
        transfer: TransferServer,
        loading: Callable[[ModelSpec], AbstractContextManager[None]],
        holders: Callable[[], dict[str, int]],
    ) -> None:
        """loading: entered while a model is loaded. holders: see ModelLoader."""
        self._config = config
        self._opener = opener
        self._transfer = transfer
        self._loading = loading
        self._holders = holders
        self._lock = threading.Lock()  # one load at a time, of whichever model

    def moves(self, load: object) -> IslandMoves | None:
        """Return what moves pages between islands, if some compute prompts for the others.

        Raises InvalidRequest if none are left for the answers.
        """
        if not self._config.prefill_islands:
            return None
        assert isinstance(load, LmLoad), "check_behind_proxy has refused stages"
        every = copies(1)
        prompts = {copy for copy in every if copy[0] in self._config.prefill_islands}
        if len(prompts) in (0, len(every)):
            raise InvalidRequest(
                f"--prefill_islands names {len(prompts)} of the {len(every)} islands: name some, "
                "and leave some for the answers"
            )
        moves = IslandMoves({copy_name(copy) for copy in prompts}, load.deployment.limits)
        load.port = moves.port(copy_name(every[0]), load.deployment.layer_sets)
        return moves

    def load_others(
        self,
        spec: ModelSpec,
        first: Runner,
        load: AnyIslandLoad,
        moves: IslandMoves | None,
        report: Report,
    ) -> IslandLoads:
        """Load one copy after another, on the islands that the first left."""
        limits = load.deployment.limits
        first_copy, *others = copies(load.deployment.recipe.stages)
        runners = {first_copy: _island_runner(first, load, moves, first_copy)}
        try:
            for copy in others:
                runners[copy] = self._load(spec, limits, copy, moves, report)
        except BaseException:
            for runner in runners.values():
                for lane in runner.lanes:
                    lane.close()
            raise

        def load_again(copy: Copy) -> IslandRunner:
            return self._load(spec, limits, copy, moves, _report_to_nobody)

        elastic = self._config.elastic_slices
        return IslandLoads(spec.model_id, load_again, answers, runners, elastic, moves)

    def planned(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        holders: Mapping[str, int],
        copy: Copy,
        limits: EngineLimits | None = None,
    ) -> AnyIslandLoad:
        """Plan a copy. Raises as a load does."""
        how = (spec, recipe, checkpoint, self._config, holders)
        if recipe.stages > 1:
            return IslandStagesLoad(*how, copy, limits)
        return LmLoad(*how, self._transfer, limits, among=islands()[copy[0]])

    def _load(
        self,
        spec: ModelSpec,
        limits: EngineLimits,
        copy: Copy,
        moves: IslandMoves | None,
        report: Report,
    ) -> IslandRunner:
        """Load a model that was planned on other islands. Raises as a load does."""
        with (
            self._lock,
            self._loading(spec),
            self._opener.opened(spec, report) as checkpoint,
        ):
            recipe = recipe_of(spec, checkpoint.config if checkpoint else None)
            assert isinstance(recipe, Recipe), "only language models have islands"
            holders = self._holders()
            holders.pop(spec.model_id, None)
            load = self.planned(spec, recipe, checkpoint, holders, copy, limits)
            if moves is not None and isinstance(load, LmLoad):
                load.port = moves.port(copy_name(copy), load.deployment.layer_sets)
            runner = load.build(COMPILED_HERE, report)
            run_all(runner, report)
            return _island_runner(runner, load, moves, copy)


def _island_runner(
    runner: Runner, load: AnyIslandLoad, moves: IslandMoves | None, copy: Copy
) -> IslandRunner:
    if moves is not None:
        runner = moves.attach(copy_name(copy), runner)
    return IslandRunner(runner, load.others)


def _report_to_nobody(progress: Progress) -> None:
    """For loads that nobody asked for."""
