"""`python -m tests.tools.chaos.streams`: kills model servers under streams, and reads them all."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.tools.chaos.streams.story import play


def main() -> int:
    """Exit 1 if a stream broke or its text was wrong."""
    parser = argparse.ArgumentParser("python -m tests.tools.chaos.streams", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="(%(default)s)")
    parser.add_argument("--readers", type=int, default=16, help="streams at a time (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sax-chaos-") as folder:
        figures = asyncio.run(play(flags.kills, flags.readers, Path(folder), flags.seed))
    print(json.dumps(figures.summary()))
    for fault in figures.faults[:20]:
        print(fault, file=sys.stderr)
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())
