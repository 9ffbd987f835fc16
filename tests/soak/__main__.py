"""Soak a cell of real processes with random requests of all kinds.

python -m tests.soak --seconds 600    exits 1 if an answer is lost, a program is compiled while
                                      serving, or memory stays behind
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.end_to_end.cell import Cell, local_plan
from tests.soak.story import FLAGS, Soak, publish, soak


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the requests (%(default)s)")
    flags = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="sax-soak-") as folder,
        Cell(local_plan(Path(folder), *FLAGS)) as cell,
    ):
        publish(cell)
        made = asyncio.run(soak(cell, flags.seconds, flags.seed))
    print(report(made))
    return 1 if made.lost or made.compiles or any(made.left_behind.values()) else 0


def report(made: Soak) -> str:
    """Return the outcomes as a table, and the rest as lines."""
    columns = ("answered", "refused", "full", "late", "left", "lost")
    lines = ["| request | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    for kind in sorted({kind for kind, _ in made.outcomes}):
        counts = (str(made.outcomes[kind, each]) for each in columns)
        lines.append(f"| {kind} | " + " | ".join(counts) + " |")
    before, after = (size >> 20 for size in made.resident)
    lines += [
        "",
        f"{made.compiles:.0f} compiles while serving; {len(made.lost)} answers lost; left behind: "
        f"{made.left_behind}; the model server grew from {before} to {after} MiB.",
        *made.lost[:20],
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
