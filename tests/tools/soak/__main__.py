"""Soak a cell of real processes with random requests of all kinds.

python -m tests.tools.soak --seconds 600    exits 1 if an answer is lost, a program is compiled
                                            while serving, or memory stays behind
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.end_to_end.cell import Cell, local_plan
from tests.tools.bench.page import PAGE, machine, with_tables
from tests.tools.bench.table import Table
from tests.tools.soak.story import AT_ONCE, FLAGS, RUDE, Soak, publish, soak


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the requests (%(default)s)")
    parser.add_argument("--page", action="store_true", help="put the table into the page")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sax-soak-") as folder:
        own = Path(folder)
        with Cell(local_plan(own / "cell", *FLAGS)) as cell:
            publish(cell, own)
            made = asyncio.run(soak(cell, flags.seconds, flags.seed))
    table = report(made, flags.seconds).markdown()
    print(table, *made.lost[:20], sep="\n")
    if flags.page:
        PAGE.write_text(with_tables(PAGE.read_text(), [table], machine()))
    return 1 if made.lost or made.compiles or any(made.left_behind.values()) else 0


def report(made: Soak, seconds: float) -> Table:
    """Return the outcomes of each kind of request, and what became of the server."""
    columns = ("answered", "refused", "full", "late", "left", "lost")
    servers, gateways = (
        " -> ".join(f"{size >> 20}" for size in sizes) for sizes in zip(*made.resident, strict=True)
    )
    left = ", ".join(f"{name} {value:.0f}" for name, value in made.left_behind.items())
    table = Table(
        "A soak with requests of all kinds",
        f"{AT_ONCE} callers for {seconds:.0f} s, and {RUDE} that read slowly or not at all or stop "
        f"in mid-request; one model server ({' '.join(FLAGS)}) with the demo model, an adapter of "
        "it, an embedding model and a decoder that embeds, ranks and differentiates; random "
        "fields of the table, some of which contradict each other. Late: past the time limit that "
        "the caller set. Left: the caller went away. Compiled while serving: "
        f"{made.compiles:.0f} programs. {made.given_back_s:.1f} s after the last caller: {left}. "
        f"Resident memory at the start, half-way and at the end, in MiB: {servers} (model "
        f"server), {gateways} (gateway).",
        ("request", *columns),
    )
    for kind in sorted({kind for kind, _ in made.outcomes}):
        table.add(kind, *(made.outcomes[kind, each] for each in columns))
    return table


if __name__ == "__main__":
    raise SystemExit(main())
