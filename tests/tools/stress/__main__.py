"""Attack a cell of real processes in every way of `tests/tools/stress/rows`, and write the table.

python -m tests.tools.stress                  every row five times; rewrites reliability.md
python -m tests.tools.stress --runs 1 NAME    some rows; prints only
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

from tests.tools.stress.cells import Cells
from tests.tools.stress.row import ROWS, Outcome, Row, check, run
from tests.tools.stress.table import heading, line, load_rows, write_page


def main() -> int:
    load_rows()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--runs", type=int, default=5, help="of every row (%(default)s)")
    flags = parser.parse_args()
    names = flags.names or list(ROWS)
    if unknown := set(names) - set(ROWS):
        parser.error(f"no row named {', '.join(sorted(unknown))}")
    lines, failed = [heading()], 0
    with tempfile.TemporaryDirectory(prefix="sax-stress-") as folder:
        cells = Cells(Path(folder))
        try:
            for name in names:
                print(f"running {name}", file=sys.stderr, flush=True)
                made, failure = _runs(ROWS[name], cells, flags.runs)
                failed += bool(failure)
                lines.append(line(ROWS[name], made, failure))
                print(lines[-1], flush=True)
        finally:
            cells.close()
    if not flags.names:
        machine = f"Machine: {os.cpu_count()} cores; Python {platform.python_version()}."
        write_page("\n".join((machine, "", *lines)) + "\n")
    return 1 if failed else 0


def _runs(row: Row, cells: Cells, count: int) -> tuple[list[Outcome], str]:
    """Run a row so often; return the outcomes, and why the last run failed if it did."""
    made: list[Outcome] = []
    try:
        for _ in range(count):
            made.append(run(row, cells.of(row)))
            check(row, made[-1])
    except AssertionError as error:
        cells.drop(row)
        return made, str(error).partition("\n")[0][:200] or "assertion"
    return made, ""


if __name__ == "__main__":
    sys.exit(main())
