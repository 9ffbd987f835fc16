"""Runs a module as a child process that ends when its supervisor dies.

    python -m sax.cli.local.leash admin_server --port 10000

Standard input is the read end of a pipe whose only writer is the supervisor. When the supervisor
dies, even by kill -9, the pipe closes and this process drains as on SIGTERM. Works the same on
Linux and macOS.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
import threading
import time

DRAIN_S = 30.0  # longer than the servers' own drain timeout
_IMPORTS_S = 3.0  # what is made until then stays, so garbage is collected from then on


def main() -> None:
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python -m sax.cli.local.leash MODULE [FLAGS ...]\n")
        raise SystemExit(2)
    module, *flags = sys.argv[1:]
    threading.Thread(target=_end_with_supervisor, name="leash", daemon=True).start()
    gc.disable()
    threading.Thread(target=_collect_later, name="garbage", daemon=True).start()
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with_supervisor() -> None:
    while os.read(0, 64):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(DRAIN_S)
    os._exit(1)


def _collect_later() -> None:
    time.sleep(_IMPORTS_S)
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main()
