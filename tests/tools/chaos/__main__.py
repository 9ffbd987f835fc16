"""`python -m tests.tools.chaos`: runs with real processes, their figures, and a table of them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.stores import seaweed
from tests.tools.chaos.stores import KINDS
from tests.tools.chaos.story import Shape, play
from tests.tools.report import table

_DESCRIPTION = """\
Starts a cell of real processes (3 admin servers, 3 model servers, a store), lets clients publish,
update, roll back and unpublish at random while processes are killed with -9, paused, and cut off
from the store, then heals everything and checks: every acknowledged call is in the log, in order
and once; what was refused was not done; one admin server leads; every model is ready where it is
wanted and nowhere else. Says what was done to whom, and exits 1, if any of it is not so.
"""
_EPILOG = """\
examples:
  python -m tests.tools.chaos --seconds 120 --seed 7
      one run on SeaweedFS; the same seed makes the same choices (never the same run: the machine
      decides who runs when)
  python -m tests.tools.chaos --runs 3 --seconds 90 --store seaweedfs --store folder
      three seeds on each store, and a table of them all (markdown) at the end

Every run prints its figures as one line of JSON on stderr. Gaps are seconds from the kill -9, the
pause or the cut of a leader to the next change that was acknowledged to a client that tries all
the time; "alone": nothing else was in trouble meanwhile.
"""
_COLUMNS = ("store", "seed", "calls done / refused / unknown", "records", "takeovers")
_GAPS = ("kill", "pause", "cut")


def main() -> int:
    """0 if every run was good."""
    flags = _parser().parse_args()
    rows: list[dict[str, Any]] = []
    for store in flags.store or KINDS[:1]:
        if store == "seaweedfs" and (why := seaweed.missing()):
            print(why, file=sys.stderr)
            continue
        for seed in range(flags.seed, flags.seed + flags.runs):
            shape = Shape(store, flags.seconds, admins=flags.admins, servers=flags.servers)
            with tempfile.TemporaryDirectory(prefix="sax-chaos-") as folder:
                row = asyncio.run(play(seed, shape, Path(folder))).summary()
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
    print(_table(rows))
    return 0


def _table(rows: list[dict[str, Any]]) -> str:
    gaps = [f"{how} of a leader: count, median, max s" for how in _GAPS]
    heads = [*_COLUMNS, "kills, pauses, cuts, broken disks", *gaps, "converged after s"]
    return table(heads, map(_cells, rows))


def _cells(row: dict[str, Any]) -> list[str]:
    calls, counts = row["calls"], dict.fromkeys(("kill", "pause", "cut", "break"), 0)
    for name, count in row["troubles"].items():
        counts[name.split()[0]] += count
    return [
        row["store"],
        str(row["seed"]),
        " / ".join(str(calls[name]) for name in ("done", "refused", "unknown")),
        str(row["records"]),
        str(row["takeovers"]),
        ", ".join(map(str, counts.values())),
        *(_gap(row[f"gap_after_{how}_s"]["alone"]) for how in _GAPS),
        str(row["converged_s"]),
    ]


def _gap(spread: dict[str, float]) -> str:
    if not spread["count"]:
        return "none"
    return f"{spread['count']}, {spread['median']}, {spread['max']}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.tools.chaos",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seconds", type=float, default=75.0, help="of trouble in each run (%(default)g)")
    add(
        "--seed", type=int, default=1, help="of the first run; the next ones count on (%(default)s)"
    )
    add("--runs", type=int, default=1, help="on each store (%(default)s)")
    add("--store", action="append", choices=KINDS, help="repeatable (seaweedfs)")
    add("--admins", type=int, default=3, help="admin servers (%(default)s)")
    add("--servers", type=int, default=3, help="model servers (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
