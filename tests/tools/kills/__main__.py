"""`python -m tests.tools.kills`: a replica of several hosts, killed again and again under load."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sax.cli.local.cell_plan import CellPlan
from tests.end_to_end.cell import local_plan
from tests.end_to_end.command import Command, options, sax
from tests.hosts.asking import SHRUNK, SPMD
from tests.tools.kills.asking import Clients
from tests.tools.kills.changing import Changes
from tests.tools.kills.killing import Broken, Kill, Killer, deaths
from tests.tools.report import table, tails

_DESCRIPTION = """\
Runs `sax up` with one model server of several hosts and a small model, lets clients stream
completions through the gateway and an operator change the cell all the time, and kills a random
host with -9, again and again. Every request must end, with the one answer there is or with a typed
error; a host that lives, or the supervisor, must name the one that is lost; the replica must be
back; and in the end all that was acknowledged must be so. Says what was not, and exits 1.
"""
_EPILOG = """\
The supervisor is that of `sax up`, with one difference: it does not wait longer after each death.
Every kill is told on stderr as it is over; the row comes at the end (markdown).
"""
MODEL = "/sax/test/spmd"
_FLAGS = ("--slots=2", "--max_context=512", "--page_size=16")
_TOKENS = 300
_COLUMNS = (
    "hosts",
    "kills (of the primary)",
    "streams in flight then",
    "lost host named after s: median, max",
    "all streams ended after s: median, max",
    "next answer after s: median, max",
    "answers",
    "errors by type",
    "changes acknowledged / refused / lost",
    "other restarts",
)


def main(words: Sequence[str] | None = None) -> int:
    """0 if every promise was kept."""
    flags = _parser().parse_args(words)
    with tempfile.TemporaryDirectory(prefix="sax-kills-") as folder:
        plan = local_plan(Path(folder) / "cell", hosts=flags.hosts, devices_per_host=1)
        up = ("up", "--publish", _publication(), *options(plan), "--", *_FLAGS)
        with sax(*up, module="tests.tools.kills.impatient") as command:
            command.until("is up")
            return _run(plan, command, flags)


def _run(plan: CellPlan, command: Command, flags: argparse.Namespace) -> int:
    kills: list[Kill] = []
    complaints: list[str] = []
    clients = Clients(plan.gateway_url, MODEL, flags.clients, _TOKENS)
    changes = Changes(plan.admin_address, flags.seed)
    try:
        with clients, changes:
            killer = Killer(plan, clients, lambda: command.output, flags.seed)
            for number in range(1, flags.kills + 1):
                kills.append(killer.kill_one())
                _tell({"kill": number, **vars(kills[-1])})
    except Broken as exc:
        complaints.append(str(exc))
        print(f"{exc}\n{command.output}\n{tails(plan.logs, 15)}", file=sys.stderr, flush=True)
    lost = changes.complaints()
    complaints += [*clients.complaints(), *lost, *_end(command, [kill.host for kill in kills])]
    outcomes = clients.outcomes()
    row = [
        str(flags.hosts),
        *_kill_cells(kills),
        str(outcomes.pop("answer", 0)),
        ", ".join(f"{count} {code}" for code, count in outcomes.most_common()) or "none",
        f"{changes.acknowledged} / {changes.refused} / {len(lost)}",
        str(command.output.count("; restarting its") - len(deaths(command.output))),
    ]
    print(table(_COLUMNS, [row]))
    for complaint in complaints:
        print(f"BROKEN: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _end(command: Command, killed: list[int]) -> Iterator[str]:
    """Drain the cell; what the supervisor did wrong."""
    if (code := command.end(signal.SIGINT)) != 0:
        yield f"sax up ended with {code}:\n{command.output}"
    if (told := deaths(command.output)) != killed:
        yield f"hosts {killed} were killed, and the supervisor told of {told}"


def _publication() -> str:
    wanted = {**SHRUNK, "DTYPE": "float32"}  # the same tokens whoever else is in the step
    words = [f"{key}={json.dumps(value)}" for key, value in wanted.items()]
    return shlex.join([MODEL, SPMD, "None", "1", *words])


def _kill_cells(kills: list[Kill]) -> list[str]:
    return [
        f"{len(kills)} ({sum(kill.host == 0 for kill in kills)})",
        str(sum(kill.streams for kill in kills)),
        _spread(kills, lambda kill: kill.named_s),
        _spread(kills, lambda kill: kill.ended_s),
        _spread(kills, lambda kill: kill.back_s),
    ]


def _spread(kills: list[Kill], of: Callable[[Kill], float]) -> str:
    times_s = [of(kill) for kill in kills]
    return f"{statistics.median(times_s):.1f}, {max(times_s):.1f}" if times_s else "none"


def _tell(figures: dict[str, object]) -> None:
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps(rounded), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.tools.kills",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--kills", type=int, default=50, help="how many (%(default)s)")
    add("--hosts", type=int, default=3, help="of the replica (%(default)s)")
    add("--clients", type=int, default=3, help="that stream all the time (%(default)s)")
    add("--seed", type=int, default=1, help="of who is killed and what is changed (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
