"""Seconds per room of the tests: printed at the end of every run, and held against a budget.

A room is a folder of the mirror, two deep in model_server. tests/budgets.toml says how many seconds
each may take in `make test` and `make test-all`, in the workers together, with cold caches on the
machine of the table. A room that takes twice its budget fails the run by name where
SAX_STRICT_BUDGET is set, as in CI. Slower machines have more: the budget grows by how much longer a
fixed loop takes there.
"""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest

BUDGETS = Path(__file__).with_name("budgets.toml")
STRICT = "SAX_STRICT_BUDGET"
TOLERANCE = 2.0
LEAST_S = 5.0  # less than that is noise
_LOOP_S = 0.04  # that the loop takes on the machine of the table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", default="", help="the target whose budget holds: test, test-all")


def room_of(file: str) -> str:
    """The room of a test file, given below the root."""
    parts = Path(file).parts[1:-1]
    depth = 2 if parts[:1] == ("model_server",) else 1
    return "/".join(parts[:depth]) or "tests"


def over_budget(seconds: dict[str, float], budget: dict[str, float], slowness: float) -> list[str]:
    """Name each room that takes more than twice its budget; a room without one has the least."""
    return [
        f"{room}: {spent:.0f} s, budget {budget.get(room, LEAST_S):.0f} s"
        for room, spent in sorted(seconds.items())
        if spent > TOLERANCE * max(budget.get(room, LEAST_S), LEAST_S) * slowness
    ]


class Spending:
    """Adds up what reports say, in the process that prints them."""

    def __init__(self, target: str) -> None:
        self._budget = tomllib.loads(BUDGETS.read_text()).get(target, {})
        self._strict = bool(target and os.environ.get(STRICT))
        self._slowness = 1.0
        self._seconds: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        room = room_of(report.nodeid.split("::")[0])
        self._seconds[room] += report.duration
        self._tests[room] += report.when == "call"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._slowness = max(1.0, _seconds_of_a_loop() / _LOOP_S)
        if self._too_much() and self._strict and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"seconds per room (this machine: x{self._slowness:.1f})")
        for room, spent in self._seconds.most_common():
            told = (
                f"{spent:7.1f} of {self._budget[room]:4}"
                if room in self._budget
                else f"{spent:7.1f}"
            )
            terminalreporter.line(f"{told:15}  {self._tests[room]:5} tests  {room}")

    def pytest_unconfigure(self) -> None:
        """Say it last, below the list of skips: all that is left of a long log is its end."""
        for line in self._too_much():
            sys.stdout.write(f"OVER BUDGET  {line} (tests/budgets.toml)\n")

    def _too_much(self) -> list[str]:
        return over_budget(self._seconds, self._budget, self._slowness) if self._budget else []


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of xdist only reports
        config.pluginmanager.register(Spending(config.getoption("budget")), "spending")


def _seconds_of_a_loop() -> float:
    def once() -> float:
        began = time.perf_counter()
        sum(each * each % 7 for each in range(500_000))
        return time.perf_counter() - began

    return min(once() for _ in range(5))
