"""Judges calls by what was done meanwhile. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.tools.chaos.pathways.calls import Call
from tests.tools.chaos.pathways.client import RIGHT, WRONG
from tests.tools.chaos.pathways.faults import Fault

LIMIT_S = 5.0  # without an answer
# What the loss of an island, a connection or a proxy server may be called.
TYPED = frozenset({"DATA_LOSS", "UNAVAILABLE"})
_CODE = re.compile(r"([A-Z_]+)\b")


@dataclass
class Blow:
    """A fault and its times, in seconds of the monotonic clock."""

    fault: Fault
    at_s: float
    healed_s: float = 0.0  # what was dead is started, what stood is continued
    whole_s: float = 0.0  # all numbers are right again
    in_flight: bool = False  # the call that it aimed at was open

    @property
    def back_s(self) -> float:
        return self.whole_s - self.healed_s


@dataclass
class Verdict:
    """Of one blow."""

    longest_s: float = 0.0  # that a call stayed without an answer
    longest: str = ""  # the call that did
    wrong: int = 0
    right: int = 0
    old_read: int = 0  # values of an island's earlier incarnation that came
    old_lost: int = 0
    old_kept: int = 0
    errors: dict[str, int] = field(default_factory=dict[str, int])  # by code
    complaints: list[str] = field(default_factory=list[str])


def code_of(said: str) -> str:
    """Return the code that an error's text begins with."""
    found = _CODE.match(said)
    return found[1] if found else said[:40]


def judge(blow: Blow, target: Iterable[Call], others: Iterable[Call]) -> Verdict:
    """Judge all calls that the blow may have met. target: the client that it aims at."""
    verdict = Verdict()
    for own, calls in ((True, target), (False, others)):
        for call in calls:
            if call.ended_s is not None and call.ended_s < blow.at_s:
                continue
            if call.name.startswith("old:"):
                _judge_old(verdict, blow.fault, call)
            else:
                _judge_number(verdict, blow, call, own=own)
            _judge_wait(verdict, blow, call, own=own)
    return verdict


def _judge_number(verdict: Verdict, blow: Blow, call: Call, *, own: bool) -> None:
    if call.said == RIGHT:
        verdict.right += 1
    elif call.said == WRONG:
        verdict.wrong += 1
        verdict.complaints.append(f"wrong numbers: {call}")
    elif call.said:
        _judge_error(verdict, call, allowed=may_fail(blow.fault, call, own=own))


def _judge_error(verdict: Verdict, call: Call, *, allowed: bool) -> None:
    code = code_of(call.said)
    verdict.errors[code] = verdict.errors.get(code, 0) + 1
    if call.name == "connect":
        return  # there is nobody to connect to yet
    if code not in TYPED:
        verdict.complaints.append(f"an error of another type: {call}")
    elif not allowed:
        verdict.complaints.append(f"an error where none should be: {call}")


def may_fail(fault: Fault, call: Call, *, own: bool) -> bool:
    """Tell whether a call may end with an error because of a fault."""
    if fault.loses == "no":
        return False
    if fault.role == "worker":
        return fault.island in call.islands
    return fault.cuts(own=own)


def _judge_old(verdict: Verdict, fault: Fault, call: Call) -> None:
    """An array that was made before the fault is right, or its loss is told."""
    hit = may_fail(fault, call, own=True) and not (
        fault.role == "worker" and call.islands[0] != fault.island
    )
    if call.said == WRONG:
        verdict.wrong += 1
        verdict.complaints.append(f"wrong numbers: {call}")
    elif call.said == RIGHT and hit and fault.loses == "yes":
        verdict.old_read += 1
        verdict.complaints.append(f"a value of an earlier incarnation was read: {call}")
    elif call.said == RIGHT:
        verdict.old_kept += 1
    elif hit and code_of(call.said) in _losses(fault):
        verdict.old_lost += 1
    else:
        verdict.complaints.append(f"an old array is lost in other words, or for nothing: {call}")


def _losses(fault: Fault) -> frozenset[str]:
    """Codes of a lost array: with its connection, jax's own client says it."""
    return frozenset({"DATA_LOSS"}) if fault.role == "worker" else TYPED


def _judge_wait(verdict: Verdict, blow: Blow, call: Call, *, own: bool) -> None:
    waited_s = waited(blow, call, own=own)
    if waited_s > verdict.longest_s:
        verdict.longest_s, verdict.longest = waited_s, call.name
    if waited_s > LIMIT_S:
        verdict.complaints.append(f"{waited_s:.1f} s without an answer: {call}")


def waited(blow: Blow, call: Call, *, own: bool) -> float:
    """Return how long a call stayed without an answer after the blow, in seconds.

    What stands still itself answers nothing: its time counts from when it goes on.
    """
    fault = blow.fault
    if call.name == "connect" or call.ended_s is None:
        return 0.0  # one that waits for a proxy server; one whose client was killed
    still = fault.how == "stop" and (fault.role == "proxy" or (fault.role == "client" and own))
    return max(0.0, call.ended_s - max(call.begun_s, blow.healed_s if still else blow.at_s))
