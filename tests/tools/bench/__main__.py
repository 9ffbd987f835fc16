"""Every benchmark, one after the other, and the page that keeps the figures.

`make bench` runs all and rewrites docs/reference/benchmarks.md;
`python -m tests.tools.bench engine gateway` runs some and prints their tables, and with `--page`
puts them into the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from model_server.process.heap import keep_freed_memory
from tests.tools.bench import (
    bench_cell,
    bench_control_plane,
    bench_engine,
    bench_exactness,
    bench_failover,
    bench_fairness,
    bench_fields,
    bench_gateway,
    bench_gpu_attention,
    bench_grammar,
    bench_islands,
    bench_loading,
    bench_lockstep,
    bench_lora,
    bench_plan,
    bench_prefix_cache,
    bench_quantization,
    bench_routing,
    bench_scheduler,
    bench_speculation,
    bench_steady,
    bench_tpu_attention,
    bench_transformers,
    bench_weights,
)
from tests.tools.bench.page import HEAD, PAGE, machine, tables_of_their_own, with_tables
from tests.tools.bench.table import Table

BENCHES: dict[str, Callable[[], Table | list[Table]]] = {
    "engine": bench_engine.run,
    "scheduler": bench_scheduler.run,
    "fields": bench_fields.run,
    "grammar": bench_grammar.run,
    "transformers": bench_transformers.run,
    "loading": bench_loading.run,
    "weights": bench_weights.run,
    "quantization": bench_quantization.run,
    "exactness": bench_exactness.run,
    "gpu_attention": bench_gpu_attention.run,  # no table where there is no GPU
    "tpu_attention": bench_tpu_attention.run,
    "fairness": bench_fairness.run,
    "steady": bench_steady.run,
    "lockstep": bench_lockstep.run,
    "islands": bench_islands.run,
    "prefix_cache": bench_prefix_cache.run,
    "lora": bench_lora.run,
    "speculation": bench_speculation.run,
    "plan": bench_plan.run,
    "routing": bench_routing.run,
    "gateway": bench_gateway.run,
    "cell": bench_cell.run,
    "control_plane": bench_control_plane.run,
    "failover": bench_failover.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], help="which; none: all")
    parser.add_argument("--page", action="store_true", help="replace these tables in the page")
    flags = parser.parse_args()
    names = flags.names
    pages = []
    for name in names or BENCHES:
        print(f"running {name}", file=sys.stderr, flush=True)
        # In a process of its own: what one leaves behind would weigh on the next.
        own_process = get_context("spawn")
        with ProcessPoolExecutor(1, own_process, initializer=keep_freed_memory) as own:
            made = own.submit(BENCHES[name]).result()
        for table in [made] if isinstance(made, Table) else made:
            print(table.markdown(), flush=True)
            pages.append(table.markdown())
    if not names:
        kept = tables_of_their_own(PAGE.read_text())
        page = with_tables("\n".join([HEAD, machine(), *pages]), kept, "", first=True)
        PAGE.write_text(page)
    elif flags.page:
        PAGE.write_text(with_tables(PAGE.read_text(), pages, machine()))


if __name__ == "__main__":
    main()
