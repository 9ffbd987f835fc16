"""A host's position in a pipeline.

The hosts of a replica are divided in order into equal groups, one per stage. Host i of a stage
sends to host i of the next one, and host i of the last stage to host i of the first: the hosts form
rings, and each has one neighbour before it and one after.
"""

from __future__ import annotations

from dataclasses import dataclass

from sax.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class StagePlace:
    hosts: int  # of the replica
    stages: int
    ordinal: int  # this host's

    @property
    def per_stage(self) -> int:
        return self.hosts // self.stages

    @property
    def stage(self) -> int:
        return self.ordinal // self.per_stage

    @property
    def members(self) -> range:
        return range(self.stage * self.per_stage, (self.stage + 1) * self.per_stage)

    @property
    def next(self) -> int:
        return (self.ordinal + self.per_stage) % self.hosts


def place_of(hosts: int, ordinal: int, stages: int) -> StagePlace:
    """Raises InvalidRequest if the hosts do not divide evenly into stages."""
    if hosts % stages:
        raise InvalidRequest(
            f"NUM_STAGES is {stages}, but this replica has {hosts} "
            f"{'host' if hosts == 1 else 'hosts'}, which do not divide evenly: give a divisor of "
            "the number of hosts, or publish on a replica with more",
            param="overrides.NUM_STAGES",
        )
    return StagePlace(hosts, stages, ordinal)
