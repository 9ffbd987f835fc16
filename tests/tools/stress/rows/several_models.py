"""A second model comes and goes on the server that streams the first."""

from __future__ import annotations

import time

from tests.demo_model import demo_model
from tests.end_to_end.cell import Cell
from tests.tools.stress.row import row

SECOND = "/sax/test/second"
ROUNDS = 3


# No compile cache: each round compiles every program of the second model, on the same cores.
@row(
    f"a second model compiled, loaded and unloaded {ROUNDS} times",
    model_server_flags=("--jax_cache_dir=",),
    longest_gap_s=0.5,
    fresh=True,
)
def second_model(cell: Cell) -> str:
    loads_s = [_round(cell) for _ in range(ROUNDS)]
    return f"loaded within {max(loads_s):.0f} s"


def _round(cell: Cell) -> float:
    """Publish and unpublish it; return the seconds until it was ready."""
    began_s = time.monotonic()
    cell.publish(str(demo_model()), model=SECOND)
    took_s = time.monotonic() - began_s
    assert cell.text("The capital of France is", model=SECOND)
    gone = cell.sax("unpublish", SECOND)
    assert gone.returncode == 0, gone.stderr
    cell.eventually(lambda: _loaded(cell) == 1, "one model is left")
    return took_s


def _loaded(cell: Cell) -> int:
    lines = cell.metrics_page().splitlines()
    return sum(line.startswith("sax_memory_bytes{") for line in lines)
