"""Changes of a loaded model's weights, as an operator or a trainer asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sax.errors import Unavailable
from sax.format import listing

METHOD = "weights.update"  # of access control lists: who else may change a model's weights
PUBLISHED = "0"  # the version of the weights that a model was published with
CHANGE_S = 3600.0  # longest wait for a change: answers that have begun may have to end first


class Pausing(StrEnum):
    """How a change of weights treats answers that have begun."""

    WAIT = "wait"  # they end first
    KEEP = "keep"  # they stop, and go on with the keys and values that they have
    RECOMPUTE = "recompute"  # they stop, and their keys and values are computed again


class WeightState(StrEnum):
    SERVING = "serving"
    PAUSED = "paused"
    ASLEEP = "asleep"


class WeightAction(StrEnum):
    UPDATE = "update"
    PAUSE = "pause"
    RESUME = "resume"
    SLEEP = "sleep"
    WAKE = "wake"
    STATUS = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChange:
    """A change of one model's weights, or a question for their state."""

    model_id: str
    action: WeightAction
    # The path of a checkpoint or of one safetensors file, shm:NAME for shared memory that holds
    # such a file, or memory:NAME for arrays of the server's own process.
    source: str = ""
    version: str = ""  # to name the new weights; "": the next number
    expected: str = ""  # version that they replace; "": any
    partial: bool = False  # the source has some of the tensors
    pausing: Pausing = Pausing.WAIT


@dataclass(frozen=True, slots=True)
class ReplicaWeights:
    """The weights of one replica after a change, or the reason why it did not change."""

    address: str
    version: str
    state: str
    error: str = ""


class WeightRun(NamedTuple):
    """Tokens of an answer, one after the other, that weights of one version computed."""

    version: str  # "": not known, another replica began the answer
    tokens: int


def next_version(versions: Iterable[str]) -> str:
    """Return the number behind the highest of versions; "" if one is no number."""
    numbers = [int(each) if each.isdecimal() else None for each in versions]
    known = [each for each in numbers if each is not None]
    return "" if len(known) < len(numbers) else str(1 + max(known, default=0))


def add_run(runs: list[WeightRun], version: str) -> None:
    """Count one more token of an answer."""
    if runs and runs[-1].version == version:
        runs[-1] = WeightRun(version, runs[-1].tokens + 1)
    else:
        runs.append(WeightRun(version, 1))


def runs_of(runs: Iterable[WeightRun], tokens: int) -> tuple[WeightRun, ...]:
    """Return the runs of the first tokens; the last one has what lacks, as of a beam search."""
    made: list[WeightRun] = []
    for run in runs:
        if count := min(run.tokens, tokens):
            made.append(WeightRun(run.version, count))
            tokens -= count
    if made and tokens:
        made[-1] = WeightRun(made[-1].version, made[-1].tokens + tokens)
    return tuple(made)


def check_alike(model_id: str, replicas: list[ReplicaWeights]) -> None:
    """Raise Unavailable, naming every replica that did not follow a change."""
    failed = [each for each in replicas if each.error]
    if failed:
        told = "; ".join(f"{each.address}: {each.error}" for each in failed)
        done = listing([f"{e.address} ({e.version})" for e in replicas if not e.error])
        raise Unavailable(
            f"the replicas of {model_id} differ now: {done} followed, the others did not ({told}); "
            "send the change again, or update the model to a checkpoint"
        )
