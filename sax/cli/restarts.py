"""What to do when a child of the supervisor has died: pure decisions, no processes, no clock.

A child that once answered is restarted for ever, after a delay that doubles. A child that never
answered is given up after a few tries: its flags, its port or its installation are wrong, and
starting it again would only hide that.

Children of one gang are one thing here: they have one record, and one of them gave the reason.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

GANG_LOST_EXIT = 75  # "another host of my gang is lost": not this process's own fault
_USAGE_EXIT = 2  # argparse's exit code for a flag it does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How patient the supervisor is."""

    first_s: float = 0.5  # delay before the first restart
    longest_s: float = 30.0  # the delay never exceeds this
    steady_s: float = 60.0  # a life this long forgives all earlier failures
    early_deaths: int = 3  # this many deaths without one answer: give up

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.longest_s:
            raise ValueError("first_s must be above 0 and at most longest_s")
        if self.early_deaths < 1:
            raise ValueError("early_deaths must be at least 1")


@dataclass(frozen=True, slots=True)
class Record:
    """What the supervisor remembers of one child."""

    failures: int = 0  # deaths in a row, short lives only
    answered: bool = False  # it has been seen to work


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after delay_s."""

    record: Record
    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Starting it again cannot help."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one process of a gang; a lone child is a gang of one."""

    host: int
    code: int  # negative for a signal, as subprocess has it
    killed: bool = False  # by us, because it stayed when the others had left


def cause(exits: Sequence[Exit]) -> Exit:
    """Whose exit ended the gang; `exits` are in the order in which they were seen.

    The first that had a reason of its own, else one that had to be killed: the others left it
    because it had gone silent. Else the first of all.
    """
    own = (exit for exit in exits if not exit.killed and exit.code != GANG_LOST_EXIT)
    silent = (exit for exit in exits if exit.killed)
    return next(own, None) or next(silent, None) or exits[0]


def after_exit(
    record: Record, *, code: int, lived_s: float, policy: RestartPolicy
) -> Restart | GiveUp:
    """Decide what follows a child's exit; `code` is negative for a signal, as subprocess has it."""
    failures = 1 if lived_s >= policy.steady_s else record.failures + 1
    if not record.answered and code == _USAGE_EXIT:
        return GiveUp("it refused its flags")
    if not record.answered and failures >= policy.early_deaths:
        return GiveUp(f"it died {failures} times before it answered once")
    return Restart(Record(failures, record.answered), delay(failures, policy))


def delay(failures: int, policy: RestartPolicy) -> float:
    """Seconds before restart number `failures`: doubling, bounded."""
    doublings = min(failures - 1, 32)  # 2**32 is past any sensible bound
    return min(policy.first_s * 2**doublings, policy.longest_s)


def describe_death(exit: Exit) -> str:
    """How a process of a gang went: "died (exit code 3)"."""
    if exit.killed:
        return "stopped answering (the others left it, so it was killed)"
    if exit.code == GANG_LOST_EXIT:
        return f"lost another host ({describe_exit(exit.code)})"
    return f"died ({describe_exit(exit.code)})"


def describe_exit(code: int) -> str:
    """An exit status in words: "exit code 3" or "killed by SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
