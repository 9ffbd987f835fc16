"""Plans a model for a TPU slice that need not be present: `python -m model_server.plan --help`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from model_server.plan.command import plan
from sax.command import run_alone


def main(arguments: Sequence[str] | None = None) -> int:
    return run_alone(plan, "python -m model_server.plan", arguments)


if __name__ == "__main__":
    sys.exit(main())
