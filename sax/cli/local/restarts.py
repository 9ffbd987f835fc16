"""Restart decisions for the supervisor: pure, without processes or clock.

A child that has answered once is restarted forever, after a delay that doubles. A child that never
answered is given up after a few tries: its flags, its port or its installation are wrong, and
restarting it would only hide that.

The children of a gang share one record, and the exit of one of them is the cause.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

GANG_LOST_EXIT = 75  # another host of the gang is lost: not this process's fault
_HUNG_EXIT = 70  # a step of its own device did not finish
_USAGE_EXIT = 2  # argparse's exit code for a flag it does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Delays between restarts, and when to give up."""

    first_s: float = 0.5  # delay before the first restart
    longest_s: float = 30.0  # upper bound of the delay
    steady_s: float = 60.0  # running this long resets the failure count
    early_deaths: int = 3  # give up after this many deaths without an answer

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.longest_s:
            raise ValueError("first_s must be above 0 and at most longest_s")
        if self.early_deaths < 1:
            raise ValueError("early_deaths must be at least 1")


@dataclass(frozen=True, slots=True)
class Record:
    """The supervisor's memory of one child."""

    failures: int = 0  # consecutive deaths, each after less than steady_s
    answered: bool = False  # has worked at least once


@dataclass(frozen=True, slots=True)
class Restart:
    record: Record
    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A restart cannot help."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit of one process of a gang; a lone child is a gang of one."""

    host: int
    code: int  # negative for a signal, as in subprocess
    killed: bool = False  # by the supervisor, because it outlived the others


def cause(exits: Sequence[Exit]) -> Exit:
    """Return the exit that ended the gang; `exits` are in the order seen.

    That is the first with a reason of its own; else one that had to be killed, since the others
    left because it went silent; else the first.
    """
    own = (exit for exit in exits if not exit.killed and exit.code != GANG_LOST_EXIT)
    silent = (exit for exit in exits if exit.killed)
    return next(own, None) or next(silent, None) or exits[0]


def after_exit(
    record: Record, *, code: int, lived_s: float, policy: RestartPolicy
) -> Restart | GiveUp:
    """Decide what follows a child's exit; `code` is negative for a signal, as in subprocess."""
    failures = 1 if lived_s >= policy.steady_s else record.failures + 1
    if not record.answered and code == _USAGE_EXIT:
        return GiveUp("it rejected its flags")
    if not record.answered and failures >= policy.early_deaths:
        return GiveUp(f"it died {failures} times without answering once")
    return Restart(Record(failures, record.answered), delay(failures, policy))


def delay(failures: int, policy: RestartPolicy) -> float:
    """Return the seconds before restart number `failures`: doubling, up to longest_s."""
    doublings = min(failures - 1, 32)  # 2**32 exceeds any sensible bound
    return min(policy.first_s * 2**doublings, policy.longest_s)


def describe_death(exit: Exit) -> str:
    if exit.killed:
        return "stopped answering (the others left it, so it was killed)"
    if exit.code == GANG_LOST_EXIT:
        return f"lost another host ({describe_exit(exit.code)})"
    if exit.code == _HUNG_EXIT:
        return f"hung in a step ({describe_exit(exit.code)}; its log has the stacks)"
    return f"died ({describe_exit(exit.code)})"


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
