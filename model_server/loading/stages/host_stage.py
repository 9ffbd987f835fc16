"""Adapts one host's pipeline stage to the interface through which gangs load and run models.

Wraps `pipeline_loading`: limits come from the primary, link offers travel in votes, buckets are
numbered.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.guessing.proposals import Beginning, PendingProposals, Proposals
from model_server.engine.media.encode_batch import EncodeBatch
from model_server.engine.types import EngineLimits, PendingStep, SlotMask, Step
from model_server.loading.adapters.host_adapters import adapters_of
from model_server.loading.deployment import Deployment
from model_server.loading.draft_loading import check_context
from model_server.loading.stages.drafted_pipeline import DraftedPipeline
from model_server.loading.stages.pipeline import PipelineRunner, StageThread
from model_server.loading.stages.pipeline_loading import build_stage, plan_stage, stage_layout
from model_server.loading.stages.place import StagePlace, place_of
from model_server.models.recipe import Recipe
from model_server.multihost.membership import ALONE, Membership
from model_server.multihost.zmq_link import ZmqLink
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


class StageLoad:
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
        self._seed = zlib.crc32(spec.model_id.encode())
        self._checkpoint = checkpoint
        self._host = host
        self._config = config
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

    @property
    def measured(self) -> Deployment:
        """The deployment whose buckets the runner has."""
        return self.deployment

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
                adapters=adapters_of(self.deployment, self._config),
            )
        except BaseException:
            link.close()
            raise
        if isinstance(runner, DraftedPipeline):
            return DraftedStage(runner, link, self._place)
        return HostStage(runner, link, self._place)


class HostStage:
    """One host's part of a pipelined model."""

    def __init__(self, runner: PipelineRunner, link: ZmqLink, place: StagePlace) -> None:
        self._runner = runner
        self._link = link
        self._place = place
        self._buckets = runner.buckets

    @property
    def limits(self) -> EngineLimits:
        return self._runner.limits

    @property
    def closed(self) -> bool:
        return self._runner.closed

    @property
    def warmups(self) -> int:
        return len(self._buckets) + self._runner.encodes

    @property
    def offer(self) -> str:
        """Address at which the previous host reaches this one."""
        return self._link.offer

    def connect(self, key: str, offers: Sequence[str]) -> None:
        """Connect to the next host; `offers` are those of all hosts, in order."""
        self._link.connect(offers[self._place.next])

    def warm(self, index: int) -> None:
        """Run a bucket or a batch of the encoder once.

        Behind them come guesses, which only the first stage makes.
        """
        encode = index - len(self._buckets)
        if encode < 0:
            self._runner.warm(self._buckets[index])
        elif encode < self._runner.encodes:
            self._runner.warm_encode(encode)

    def launch(self, step: Step) -> PendingStep:
        return self._runner.launch(step)

    def read_adapter(self, key: str, path: str) -> None:
        self._runner.read_adapter(key, path)

    def forget_adapter(self, key: str) -> None:
        self._runner.forget_adapter(key)

    def write_adapter(self, key: str, place: int) -> None:
        self._runner.write_adapter(key, place)

    def encode(self, batch: EncodeBatch) -> None:
        self._runner.encode(batch)

    def choose(self, masks: Sequence[SlotMask]) -> None:
        self._runner.choose(masks)

    def ask(self, beginnings: Sequence[Sequence[int]]) -> PendingProposals | None:
        """Do nothing, on a host without the draft model: others guess."""

    def close(self) -> None:
        if not self._runner.closed:
            self._runner.close()


class DraftedStage(HostStage):
    """A HostStage that is also a `guessing.proposals.SharedProposer`."""

    def __init__(self, runner: DraftedPipeline, link: ZmqLink, place: StagePlace) -> None:
        super().__init__(runner, link, place)
        self._drafted = runner

    @property
    def guess_seconds(self) -> Mapping[int, float]:
        return self._drafted.guess_seconds

    @property
    def warmups(self) -> int:
        return super().warmups + len(self._drafted.sizes)

    def warm(self, index: int) -> None:
        if index < super().warmups:
            super().warm(index)
        else:
            self._drafted.warm_guesses(self._drafted.sizes[index - super().warmups])

    def propose(self, beginnings: Sequence[Beginning]) -> Proposals:
        """As `Proposer.propose`; for a host that is alone in the first stage."""
        return self._drafted.propose(beginnings)

    def ask(self, beginnings: Sequence[Sequence[int]]) -> PendingProposals:
        """As `SharedProposer.ask`."""
        return self._drafted.ask(beginnings)
