"""`python -m tests.tools.chaos.pathways`: islands whose processes are killed or stopped; tables."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.tools.chaos.pathways.calls import Ended, Hang
from tests.tools.chaos.pathways.deployment import ISLANDS, deployed
from tests.tools.chaos.pathways.faults import Fault, deal, returns
from tests.tools.chaos.pathways.figures import (
    complaints,
    table_of_faults,
    table_of_held,
    told_of_clients,
)
from tests.tools.chaos.pathways.story import Chapter, told
from tests.tools.report import tails

_DESCRIPTION = """\
Starts a resource manager, a proxy server, two workers (islands of two CPU devices) and two clients
of jax that compute what is known beforehand: programs on each island, fresh compiles, copies
between islands, puts and fetches. Then it kills (SIGKILL) or stops (SIGSTOP, later SIGCONT) one
process after the other, idle or in the midst of a compile, a first execution, a copy, a put or a
fetch, starts or continues it, and waits until all numbers are right again. Exits 1 and says so if

- a call stays without an answer, a result or an error with a code, for more than 5 s after the
  fault (of a stopped proxy server, and of a client that is stopped itself: after it goes on);
- any number is wrong, or one of an island's earlier incarnation is read;
- a call fails that has nothing to do with the process that was hit;
- threads, files, memory, sessions, handles or arrays are left behind. The second part is for that:
  one island's worker is killed and comes back again and again, after a client has vanished in the
  midst of something, and all other processes survive.
"""
_EPILOG = """\
Every fault is told on stderr as it is over, in a line of JSON; tables come at the end (markdown).
The same seed deals the same faults, and never the same run: the machine decides who runs when.
"""


def main(words: Sequence[str] | None = None) -> int:
    """0 if everything was as it should be."""
    flags = _parser().parse_args(words)
    luck = random.Random(flags.seed)
    wrong: list[str] = []
    faults = _part(itertools.islice(deal(luck, ISLANDS), flags.faults), luck, wrong)
    if faults:
        print(f"{table_of_faults(faults)}\n\n{told_of_clients(faults)}\n")
    back = _part(returns(luck, flags.returns), luck, wrong)
    if back:
        print(f"{table_of_faults(back)}\n\n{table_of_held(back)}\n\n{told_of_clients(back)}")
    for text in wrong:
        print(f"BROKEN: {text}", file=sys.stderr)
    return 1 if wrong else 0


def _part(plan: Iterable[Fault], luck: random.Random, wrong: list[str]) -> list[Chapter]:
    """Play faults with processes of their own; what was not right is added to `wrong`."""
    chapters: list[Chapter] = []
    waiting = iter(plan)
    first = next(waiting, None)
    if first is None:
        return chapters
    with (
        tempfile.TemporaryDirectory(prefix="sax-chaos-") as name,
        deployed(Path(name)) as all_roles,
    ):
        try:
            with told(all_roles, Path(name), luck) as story:
                for fault in itertools.chain([first], waiting):
                    chapters.append(story.play(fault))
                    _tell(len(chapters), chapters[-1])
        except (Hang, Ended) as exc:
            wrong.append(f"after fault {len(chapters)}: {exc}")
            print(tails(Path(name), 40), file=sys.stderr, flush=True)
    wrong += complaints(chapters)
    return chapters


def _tell(number: int, chapter: Chapter) -> None:
    blow, verdict = chapter.blow, chapter.verdict
    line = {
        "fault": number,
        **blow.fault._asdict(),
        "pause_s": round(blow.fault.pause_s, 2),
        "in_flight": blow.in_flight,
        "longest_s": round(verdict.longest_s, 2),
        "longest": verdict.longest,
        "back_s": round(blow.back_s, 2),
        "right": verdict.right,
        "errors": verdict.errors,
        "complaints": verdict.complaints,
        "held": {
            role: [one.threads, one.files, round(one.resident_mib)]
            for role, one in chapter.held.items()
        },
        "handles": chapter.handles,
        "pressure": round(chapter.pressure, 2),
        "ended": chapter.ended,
    }
    print(json.dumps(line), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.tools.chaos.pathways",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--faults", type=int, default=100, help="how many (%(default)s)")
    add("--returns", type=int, default=20, help="of one island, for leaks (%(default)s)")
    add("--seed", type=int, default=1, help="of who is hit, how and when (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
