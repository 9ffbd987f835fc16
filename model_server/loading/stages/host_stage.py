"""Adapts one host's pipeline stage to the interface through which gangs load and run models.

Wraps `pipeline_loading`: limits come from the primary, link offers travel in votes, buckets are
numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.limits import EngineLimits
from model_server.engine.running.ops import DONE, Connect, Forwarding, Op, Pending
from model_server.loading.adapters import adapters_of
from model_server.loading.draft_loading import check_context
from model_server.loading.lm_loading import LanguageLoad
from model_server.loading.stages.pipeline import PipelineRunner, StageThread
from model_server.loading.stages.pipeline_loading import build_stage, plan_stage, stage_layout
from model_server.loading.stages.place import StagePlace, place_of
from model_server.models.recipe import Recipe
from model_server.multihost.link import ZmqLink
from model_server.multihost.membership import ALONE, Membership
from sax.types import ModelSpec, Progress

STAGES = "in stages of several hosts"


@dataclass(frozen=True, kw_only=True)
class StageHost:
    """This host's settings for pipelines."""

    membership: Membership = ALONE
    address: str = "127.0.0.1"  # at which the other hosts reach this one
    programs: Programs = COMPILED_HERE
    on_failure: Callable[[BaseException], None] = lambda failure: None
    thread: StageThread = field(default_factory=StageThread)


class StageLoad(LanguageLoad):
    """A planned stage, ready to build."""

    def __init__(
        self,
        spec: ModelSpec,
        recipe: Recipe,
        checkpoint: Checkpoint | None,
        config: ModelServerConfig,
        holders: Mapping[str, int],
        host: StageHost,
        limits: EngineLimits | None = None,
    ) -> None:
        """limits: as the primary planned them; None: this host plans.

        Raises MemoryPlanError, InvalidRequest.
        """
        super().__init__(spec, checkpoint, config)
        self._host = host
        members = host.membership
        self._place = place_of(members.count, members.ordinal, recipe.stages)
        layout = stage_layout(recipe, self._place)
        self.deployment = plan_stage(
            recipe, checkpoint, self._place.stage, layout, config, holders, limits
        )
        check_context(self.deployment)
        self.spans_hosts = True
        # Hosts of one stage wait for each other, so the stage thread fixes the order of programs.
        self.order = STAGES if self._place.per_stage > 1 else None

    def build(self, programs: Programs, report: Callable[[Progress], None]) -> HostStage:
        """Build this host's stage; `programs` belong to the primary's stage and are not used."""
        link = ZmqLink(self._host.address, bind=self._host.address)
        try:
            runner = build_stage(
                self.deployment,
                self._checkpoint,
                self._seed,
                link,
                self._host.thread,
                report,
                self._host.on_failure,
                compiled=self._host.programs,
                adapters=adapters_of(self.deployment, self._config, self._spec),
            )
        except BaseException:
            link.close()
            raise
        return HostStage(runner, link, self._place)


class HostStage(Forwarding):
    """One host's part of a pipelined model."""

    def __init__(self, runner: PipelineRunner, link: ZmqLink, place: StagePlace) -> None:
        super().__init__(runner)
        self._link = link
        self._place = place

    @property
    def offer(self) -> str:
        """Address at which the previous host reaches this one."""
        return self._link.offer

    @property
    def ops(self) -> Mapping[type[Op], Mapping[int, float]]:
        return {**super().ops, Connect: {}}

    def do(self, op: Op) -> Pending[Any]:
        if isinstance(op, Connect):
            self._link.connect(op.offers[self._place.next])
            return DONE
        return super().do(op)
